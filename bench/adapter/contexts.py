"""`specpilot bench adapter --contexts N`: long contexts beside short ones in a real engine, on this machine.

One engine runs `SHORT` requests with short prompts and `LONG` with prompts of `LONG_TOKENS`, each replaced by its like
when it ends. First the mean step is measured with K_max or 0 for either kind. Then K by the law, and each single K, run
in turn in random order, for `PIECE_S` seconds in each of N rounds. Printed are tokens per second, K of both kinds by
the law, and the prices of a context that the engine answer.

The demo pair's longest sequence is 2,048 tokens. There, on two cores, a token reads its context in about the time of
its layers.
"""

import json
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

from specpilot.bench.report.output import say
from specpilot.engine_adapter.law.prices import PARTS
from specpilot.engine_adapter.plan.speculation_control import fixed_table
from specpilot.policy.names import DEFAULT_CLASS

SHORT, LONG, LONG_TOKENS, REPLY_TOKENS = 12, 4, 1600, 400
PIECE_S = 4.0
STEPS = 60
WARM_S = 20.0
"""Seconds in which the law learns before the first round."""

BY_LAW = "law"
_LONG_CLASS = "long"
_PARTS = ("context", "verifying_context", "draft_context")


def measure(worker: Any, texts: Sequence[str], rounds: int) -> None:
    """Have the engine of `worker` measure it; the last line is one JSON object."""
    answer = worker.run(texts, 1, contexts=rounds)
    for setting, milliseconds in answer["steps_ms"].items():
        say(f"{SHORT} short and {LONG} long, K of each {setting}: a step of {milliseconds:.2f} ms")
    medians = {arm: statistics.median(rates) for arm, rates in answer["rates"].items()}
    best = max((arm for arm in medians if arm != BY_LAW), key=lambda arm: medians[arm])
    for arm, rate in medians.items():
        say(f"K {arm}: {rate:.0f} tokens/s")
    ratio = statistics.median(a / b for a, b in zip(answer["rates"][BY_LAW], answer["rates"][best], strict=True))
    say(f"law over the best single K ({best}): {ratio:.3f}; by the law K of short ones {answer['k'][0]:.2f}, ", end="")
    say(f"of long ones {answer['k'][1]:.2f}; prices in ns per token of context {answer['prices_ns']}")
    say(json.dumps({"over_best_single_k": round(ratio, 3), "best_single_k": best, **answer}))


def played(llm: Any, texts: Sequence[str], rounds: int) -> Mapping[str, Any]:
    """The worker's end."""
    scheduler, rng = llm.llm_engine.engine_core.engine_core.scheduler, random.Random(0)  # noqa: S311 - reproducible
    control, traffic = scheduler.control, _Traffic(llm, texts)
    steps_ms = {}
    for ks in ((0, 0), (control.k_max, control.k_max), (control.k_max, 0), (0, control.k_max)):
        _set_k(control, *ks)
        traffic.run(STEPS)
        steps_ms[f"{ks[0]}, {ks[1]}"] = 1e3 * statistics.median(traffic.run(STEPS))
    rates: dict[str, list[float]] = {}
    decodes, drafted = [0, 0], [0, 0]
    _let_law_choose(control)
    traffic.run_for(WARM_S)
    arms: list[int | None] = [None, *range(control.k_max + 1)]
    for _ in range(rounds):
        for k in rng.sample(arms, len(arms)):
            if k is None:
                _let_law_choose(control)
            else:
                _set_k(control, k, k)
            traffic.run_for(PIECE_S / 4)  # requests of both kinds come to the K in force
            tokens, began = traffic.tokens, time.perf_counter()
            while time.perf_counter() - began < PIECE_S:
                traffic.run(1)
                for state in scheduler.steps.decoding if k is None else ():
                    is_long = state.context >= LONG_TOKENS
                    decodes[is_long] += 1
                    drafted[is_long] += state.scheduled_k
            seconds = time.perf_counter() - began
            rates.setdefault(BY_LAW if k is None else str(k), []).append((traffic.tokens - tokens) / seconds)
    traffic.end()
    prices = dict(zip(PARTS, scheduler.law.price_list.coefficients.parts, strict=True))
    return {
        "steps_ms": steps_ms,
        "rates": rates,
        "k": [count / max(1, of) for count, of in zip(drafted, decodes, strict=True)],
        "prices_ns": {name: round(1e9 * prices[name], 2) for name in _PARTS},
    }


def _set_k(control: Any, short: int, long: int) -> None:
    table = fixed_table({DEFAULT_CLASS: short, _LONG_CLASS: long})
    control.table = lambda _: table


def _let_law_choose(control: Any) -> None:
    control.__dict__.pop("table", None)  # uncovers the class's own method


class _Traffic:
    """Requests of both kinds; `tokens` are delivered so far."""

    def __init__(self, llm: Any, texts: Sequence[str]) -> None:
        self._engine, self._llm, self._texts = llm.llm_engine, llm, texts
        self._begun, self.tokens = 0, 0
        self._kind: dict[str, bool] = {}
        self._delivered: dict[str, int] = {}
        for at in range(SHORT + LONG):
            self._begin(is_long=at >= SHORT)

    def _begin(self, *, is_long: bool) -> None:
        from vllm import SamplingParams  # noqa: PLC0415 - the parent must not load vLLM

        name, at = f"contexts-{self._begun}", self._begun
        text = self._texts[at % len(self._texts)]
        if is_long:
            tokenizer = self._llm.get_tokenizer()
            many = "\n\n".join(self._texts[(at + more) % len(self._texts)] for more in range(len(self._texts)))
            ids = tokenizer.encode(many)
            prompt: Any = {"prompt_token_ids": (ids * (LONG_TOKENS // len(ids) + 1))[:LONG_TOKENS]}
        else:
            prompt = text
        extra = {"traffic_class": _LONG_CLASS} if is_long else {}
        sampling = SamplingParams(temperature=0.0, max_tokens=REPLY_TOKENS, ignore_eos=True, extra_args=extra)
        self._engine.add_request(name, prompt, sampling)
        self._kind[name], self._delivered[name], self._begun = is_long, 0, self._begun + 1

    def run(self, steps: int) -> list[float]:
        """Run so many steps; return their seconds."""
        seconds = []
        for _ in range(steps):
            began = time.perf_counter()
            outputs = self._engine.step()
            seconds.append(time.perf_counter() - began)
            for output in outputs:
                name, count = output.request_id, len(output.outputs[0].token_ids)
                self.tokens += count - self._delivered[name]
                self._delivered[name] = count
                if output.finished:
                    del self._delivered[name]
                    self._begin(is_long=self._kind.pop(name))
        return seconds

    def run_for(self, seconds: float) -> None:
        """Run steps for some seconds."""
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            self.run(1)

    def end(self) -> None:
        """End all requests."""
        self._engine.abort_request([*self._delivered])
        while self._engine.has_unfinished_requests():
            self._engine.step()
