"""`specpilot bench adapter --single-k N`: K by the law beside each single K in a real engine, on this machine.

For each of the `LOADS` one engine runs the requests, each replaced by its like when it ends. K by the law and each
single K run in turn in random order, for `PIECE_S` seconds in each of N rounds. Printed are tokens per second by arm,
and the law's K of each kind of request. For long contexts beside short ones come the mean step with K_max or 0 for
either kind, and the prices of a context that the engine has fitted.

The demo pair's longest sequence is 2,048 tokens. There, on two cores, a token reads its context in about the time of
its layers.
"""

import json
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from specpilot.bench.adapter.traffic import Traffic
from specpilot.bench.gpu_engine.engine import chat_text
from specpilot.bench.report.output import say
from specpilot.engine_adapter.law.prices import PARTS
from specpilot.engine_adapter.plan.request_facts import CLASS_ARGUMENT
from specpilot.engine_adapter.plan.speculation_control import fixed_table
from specpilot.policy.names import DEFAULT_CLASS


class Kind(NamedTuple):
    """So many running requests of a data set; `prompt_tokens`: the length of their prompts, else their own."""

    data: str
    running: int
    temperature: float = 0.0
    prompt_tokens: int | None = None


LOADS = {
    "json": (Kind("json", 8),),
    "code": (Kind("code", 8, temperature=1.0),),
    "mixed": (Kind("json", 8), Kind("code", 8, temperature=1.0)),
    "contexts": (Kind("json", 12), Kind("json", 4, prompt_tokens=1600)),
}
REPLY_TOKENS = 400
PIECE_S = 4.0
STEPS = 60
WARM_S = 20.0
"""Seconds in which the law learns before the first round."""

START_S, SLACK = 120.0, 2.5
"""Seconds for the prompts of the first requests, and how many times the planned time a load may take."""

BY_LAW = "law"
_CONTEXT_PRICES = ("context", "verifying_context", "draft_context")


def measure_single_k(worker: Any, k_max: int, prompts: Path, loads: Sequence[str], rounds: int) -> None:
    """Have the engine of `worker` measure `loads`; the last line is one JSON object."""
    answers, within_s = {}, SLACK * (START_S + WARM_S + rounds * (2 + k_max) * PIECE_S)
    for load in loads:
        data = {kind.data for kind in LOADS[load]}
        chats = {name: [json.loads(line)["messages"] for line in _lines(prompts, name)] for name in data}
        answers[load] = answer = worker.run("single K", within_s, load=load, chats=chats, rounds=rounds)
        for setting, milliseconds in answer["steps_ms"].items():
            say(f"{load}: K of each kind {setting}: a step of {milliseconds:.2f} ms")
        rates = {arm: statistics.median(each) for arm, each in answer["rates"].items()}
        best = max((arm for arm in rates if arm != BY_LAW), key=lambda arm: rates[arm])
        ratios = {arm: _ratio(answer["rates"], arm) for arm in (best, *(arm for arm in rates if arm.isdigit()))}
        say(f"{load}: tokens/s " + ", ".join(f"K {arm}: {rate:.0f}" for arm, rate in rates.items()))
        say(f"{load}: the law over the best single K ({best}): {ratios[best]}; its K by kind {answer['k']}")
        answer |= {"best_single_k": best, "law_over": {arm: ratio.median for arm, ratio in ratios.items()}}
    say(json.dumps(answers))


class _Ratio(NamedTuple):
    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f} to {self.high:.3f})"


def _ratio(rates: Mapping[str, Sequence[float]], arm: str) -> _Ratio:
    """Return the law's rate over an arm's in the same round: the median and the range over the rounds."""
    ratios = [by_law / single for by_law, single in zip(rates[BY_LAW], rates[arm], strict=True)]
    return _Ratio(*(round(item, 3) for item in (statistics.median(ratios), min(ratios), max(ratios))))


def _lines(prompts: Path, name: str) -> list[str]:
    return (prompts / f"{name}.jsonl").read_text().splitlines()


def played(llm: Any, load: str, chats: Mapping[str, Sequence[Any]], rounds: int) -> Mapping[str, Any]:
    """The worker's end."""
    from vllm import SamplingParams  # noqa: PLC0415 - the parent must not load vLLM

    scheduler, rng = llm.llm_engine.engine_core.engine_core.scheduler, random.Random(0)  # noqa: S311 - reproducible
    control, kinds = scheduler.control, LOADS[load]
    texts_of = {name: [chat_text(llm, chat) for chat in each] for name, each in chats.items()}
    tokenizer = llm.get_tokenizer()

    def request_of(number: int, begun: int) -> tuple[Any, SamplingParams]:
        kind, texts = kinds[number], texts_of[kinds[number].data]
        prompt: Any = texts[begun % len(texts)]
        if kind.prompt_tokens is not None:
            many = "\n\n".join(texts[(begun + more) % len(texts)] for more in range(32))
            ids = tokenizer.encode(many)
            prompt = {"prompt_token_ids": (ids * (kind.prompt_tokens // len(ids) + 1))[: kind.prompt_tokens]}
        return prompt, SamplingParams(
            temperature=kind.temperature,
            seed=begun,
            max_tokens=REPLY_TOKENS,
            ignore_eos=True,
            extra_args={CLASS_ARGUMENT: _class_of(number)},
        )

    running = [number for number, kind in enumerate(kinds) for _ in range(kind.running)]
    traffic = Traffic(llm.llm_engine, running, request_of)
    classes, steps_ms = [_class_of(number) for number in range(len(kinds))], {}
    if any(kind.prompt_tokens for kind in kinds):
        for ks in product((0, control.k_max), repeat=len(kinds)):
            _set_k(control, ks)
            seconds = [traffic.step() for _ in range(2 * STEPS)]
            steps_ms[", ".join(map(str, ks))] = 1e3 * statistics.median(seconds[STEPS:])
    rates: dict[str, list[float]] = {}
    decodes, drafted = [0] * len(kinds), [0] * len(kinds)
    _let_law_choose(control)
    traffic.run_for(WARM_S)
    arms: list[int | None] = [None, *range(control.k_max + 1)]
    for _ in range(rounds):
        for k in rng.sample(arms, len(arms)):
            if k is None:
                _let_law_choose(control)
            else:
                _set_k(control, [k] * len(kinds))
            traffic.run_for(PIECE_S / 4)  # requests of all kinds come to the K in force
            tokens, began = traffic.tokens, time.perf_counter()
            while time.perf_counter() - began < PIECE_S:
                traffic.step()
                for state in scheduler.steps.decoding if k is None else ():
                    kind = classes.index(state.traffic_class)
                    decodes[kind] += 1
                    drafted[kind] += state.chosen_k
            took_s = time.perf_counter() - began
            rates.setdefault(BY_LAW if k is None else str(k), []).append((traffic.tokens - tokens) / took_s)
    traffic.end()
    prices = dict(zip(PARTS, scheduler.law.prices.coefficients.parts, strict=True))
    return {
        "steps_ms": steps_ms,
        "rates": rates,
        "k": [round(count / max(1, of), 2) for count, of in zip(drafted, decodes, strict=True)],
        "prices_ns": {name: round(1e9 * prices[name], 2) for name in _CONTEXT_PRICES},
    }


def _class_of(number: int) -> str:
    """Return the class of a kind's requests: one that no policy names, so the law has no help from it."""
    return f"kind-{number}"


def _set_k(control: Any, ks: Sequence[int]) -> None:
    table = fixed_table({DEFAULT_CLASS: 0} | {_class_of(number): k for number, k in enumerate(ks)})
    control.table = lambda _: table


def _let_law_choose(control: Any) -> None:
    control.__dict__.pop("table", None)  # uncovers the class's own method
