"""One engine in a process of its own, for one part of the check; the last line that it prints is one JSON object.

The engine's core runs in this process, so that its runner and its drafter can be asked, and the adapter is registered
by hand: it works from a checkout that nobody installed.
"""

import gc
import json
import logging
import os
import random
import statistics
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any

from specpilot.bench.adapter.parts import runner_of

ADAPTERS_OWN = ("backlog.py", "rows.py", "subset.py", "draft_width.py")
"""Modules whose operations on tensors are the adapter's own; the other wrappers go on to vLLM's."""

_WAITS = ("called a synchronizing CUDA operation", "sync detected", "pageable")
"""Words of what torch, and vLLM's own check of copies, warn of when a step waits for the device."""

_BEHIND = 96
"""Tokens of each reply at K = 0 before drafting begins, where an engine catches up."""


class Engine:
    """A vLLM engine, stepped by hand."""

    def __init__(self, options: dict[str, Any]) -> None:
        from vllm import LLM  # noqa: PLC0415 - the parent must not load vLLM

        from specpilot.engine_adapter import plugin  # noqa: PLC0415 - imports vLLM

        plugin.register()
        self.llm = LLM(**options)
        self.core = self.llm.llm_engine.engine_core.engine_core
        self.control: Any = getattr(self.core.scheduler, "control", None)
        self.runner = runner_of(self.core)
        self._tokenizer = self.llm.get_tokenizer()
        self._served = 0

    def set_k(self, k: int) -> None:
        """Let all requests have K = `k` from the next step on."""
        from specpilot.policy.types import KRange, Schedule  # noqa: PLC0415 - beside vLLM's

        control = self.control
        most = self.core.vllm_config.scheduler_config.max_num_seqs
        rows = {"default": (KRange(1, most, k),)}
        version = control.version + 1
        control.offer(Schedule(control.model, control.pool, version, time.time(), 3600.0, 0.0, rows), time.monotonic())

    def add(self, texts: Sequence[str], tokens: int) -> list[str]:
        """Add a request for `tokens` tokens at temperature 0 to each text; return their ids."""
        from vllm import SamplingParams  # noqa: PLC0415 - beside vLLM's

        self._served += 1
        names = [f"{self._served}-{number}" for number in range(len(texts))]
        for name, text in zip(names, texts, strict=True):
            sampling = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
            self.llm.llm_engine.add_request(name, self._asked(text), sampling)
        return names

    def _asked(self, text: str) -> str:
        """Return the prompt for a user's message, where the model has a form for it."""
        if not getattr(self._tokenizer, "chat_template", None):
            return text
        message = [{"role": "user", "content": text}]
        return str(self._tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True))

    def serve(
        self, texts: Sequence[str], tokens: int, on_step: Callable[[int, list[Any]], bool] = lambda *_: True
    ) -> list[list[int]]:
        """Return the token ids of a reply of `tokens` tokens to each text.

        `on_step` is told the number of each step and what it gave; where it says `False`, all requests are aborted.
        """
        engine, names = self.llm.llm_engine, self.add(texts, tokens)
        ids: dict[str, list[int]] = {}
        number = 0
        while engine.has_unfinished_requests():
            outputs = engine.step()
            number += 1
            for output in outputs:
                ids[output.request_id] = list(output.outputs[0].token_ids)
            if not on_step(number, outputs):
                engine.abort_request(names)
        return [ids.get(name, []) for name in names]


def replies(engine: Engine, job: dict[str, Any]) -> dict[str, Any]:
    """Reply at each K, and while K changes at random; without the adapter once."""
    texts, tokens = job["texts"], job["tokens"]
    engine.serve(texts[:1], 8)
    if engine.control is None:
        return {"ids": {"plain": engine.serve(texts, tokens)}}
    found: dict[str, list[list[int]]] = {}
    for k in job["ks"]:
        engine.set_k(k)
        found[str(k)] = engine.serve(texts, tokens)
    rng = random.Random(3)  # noqa: S311 - a reproducible disturbance

    def change(number: int, _: Any) -> bool:
        if number % 3 == 0:
            engine.set_k(rng.choice([0, 0, *job["ks"]]))
        return True

    found["changing"] = engine.serve(texts, tokens, change)
    return {"ids": found}


def steps(engine: Engine, job: dict[str, Any]) -> dict[str, Any]:
    """Time steps in which so many requests decode, at each K; note the graph that each found, and memory."""
    cells = []
    for running in job["running"]:
        for k in job["ks"] if engine.control is not None else [None]:
            if k is not None:
                engine.set_k(k)
            with _graphs_noted(engine.runner) as seen:
                cell = _timed(engine, job["texts"][:running], job["steps"], (k or 0) + 1, seen)
            cells.append({"running": running, "k": k, **cell})
    return {"cells": cells, "memory": _memory(), "graphs": _recorded(engine.runner), "start_graphs": _taken(engine)}


def _timed(
    engine: Engine, texts: Sequence[str], count: int, most: int, seen: Counter[tuple[int, int, str, int]]
) -> dict[str, Any]:
    """Time `count` steps, of `most` tokens a request at most, after all requests have begun to decode."""
    begun: set[str] = set()
    before: dict[str, int] = {}
    times: list[float] = []
    delivered = 0
    latest = time.perf_counter()

    def note(_: int, outputs: list[Any]) -> bool:
        nonlocal delivered, latest
        now = time.perf_counter()
        sizes = {output.request_id: len(output.outputs[0].token_ids) for output in outputs}
        if len(begun) == len(texts) and outputs:
            times.append(now - latest)
            delivered += sum(size - before.get(name, 0) for name, size in sizes.items())
        elif len(begun | sizes.keys()) == len(texts):
            seen.clear()
        begun.update(sizes)
        before.update(sizes)
        latest = now
        return len(times) < count

    gc.collect()
    engine.serve(texts, most * (count + 4) + 8, note)
    if not times:
        return {"step_ms": None}
    quartiles = statistics.quantiles(times, n=4) if len(times) > 1 else [times[0]] * 3
    return {
        "step_ms": 1e3 * statistics.median(times),
        "step_ms_quartiles": [1e3 * quartiles[0], 1e3 * quartiles[2]],
        "tokens_per_step": delivered / len(times),
        "tokens_per_s": delivered / sum(times),
        "graphs": [[*key, number] for key, number in seen.most_common(4)],
    }


@contextmanager
def _graphs_noted(runner: Any) -> Any:
    """Count the target's steps by requests, positions of the longest, mode of the graph and tokens it is padded to."""
    determine, seen = runner._determine_batch_execution_and_padding, Counter[tuple[int, int, str, int]]()  # noqa: SLF001

    def noting(*args: Any, **kwargs: Any) -> Any:
        found = determine(*args, **kwargs)
        seen[kwargs["num_reqs"], kwargs["max_num_scheduled_tokens"], found[0].name, found[1].num_tokens] += 1
        return found

    runner._determine_batch_execution_and_padding = noting  # noqa: SLF001
    try:
        yield seen
    finally:
        del runner._determine_batch_execution_and_padding  # noqa: SLF001 - the class's own shows again


def _recorded(runner: Any) -> dict[str, Any] | None:
    """Return the graphs as the engine's record tells them."""
    from specpilot.engine_adapter.vllm.graph_record import of_graphs  # noqa: PLC0415 - imports vLLM
    from specpilot.policy.codec import to_plain  # noqa: PLC0415 - beside vLLM's

    graphs = of_graphs(runner)
    return None if graphs is None else to_plain(graphs)


def _taken(engine: Engine) -> list[dict[str, float]]:
    """Return what capturing the FULL graphs of each K took."""
    taken = getattr(getattr(engine.runner, "cudagraph_dispatcher", None), "taken", {})
    return [
        {"k": length - 1, "graphs": item.graphs, "seconds": item.seconds, "mib": item.memory_bytes / (1 << 20)}
        for length, item in sorted(taken.items())
    ]


def _memory() -> dict[str, int] | None:
    """Return bytes of the device: in all, free now, and the most that torch had reserved."""
    import torch  # noqa: PLC0415 - the parent must not load it

    if not torch.cuda.is_available():
        return None
    free, total = torch.cuda.mem_get_info()
    return {"total": total, "free": free, "most_reserved": torch.cuda.max_memory_reserved()}


def caught_up(engine: Engine, job: dict[str, Any]) -> dict[str, Any]:
    """Accepted and verified drafts after a spell of K = 0: never off, off and caught up, off and not caught up."""
    scheduler, backlog = engine.core.scheduler, _backlog(engine.runner)
    verified, catch_up = scheduler.steps.verified, backlog.catch_up
    counted = {"verified": 0, "accepted": 0}
    way = ""

    def note(request: str, drafted: int, accepted: int, invalid: int) -> None:
        if scheduler.requests[request].num_output_tokens >= _BEHIND:
            counted["verified"] += drafted
            counted["accepted"] += accepted
        verified(request, drafted, accepted, invalid)

    def catching_up(*args: Any) -> None:
        if way == "not caught up":
            backlog.rows.drop()
        catch_up(*args)

    scheduler.steps.verified, backlog.catch_up = note, catching_up
    found: dict[str, Any] = {}
    k_max = engine.control.k_max
    for way in ("warm-up", "never off", "caught up", "not caught up"):
        counted.update(verified=0, accepted=0)
        engine.set_k(k_max if way == "never off" else 0)
        lengths: dict[str, int] = {}

        def begin(_: int, outputs: list[Any], lengths: dict[str, int] = lengths) -> bool:
            lengths.update({output.request_id: len(output.outputs[0].token_ids) for output in outputs})
            if lengths and min(lengths.values()) >= _BEHIND:
                engine.set_k(k_max)
            return True

        ids = engine.serve(job["texts"], _BEHIND + job["tokens"], begin)
        found[way] = dict(counted) | {"ids": ids}
    return found


def _backlog(runner: Any) -> Any:
    from specpilot.engine_adapter.vllm.drafting import of_runner  # noqa: PLC0415 - imports vLLM

    drafting = of_runner(runner)
    assert drafting is not None
    return drafting.backlog


def waits(engine: Engine, job: dict[str, Any]) -> dict[str, Any]:
    """Count what vLLM's own checks say of synchronisations and compilations after warm-up, while K changes."""
    compilations = _Compilations()
    logging.getLogger("vllm").addHandler(compilations)
    found: Counter[str] = Counter()

    def note(message: Any, *_: Any, **__: Any) -> None:
        if not any(words in str(message) for words in _WAITS):
            return
        frame = sys._getframe()  # noqa: SLF001 - the stack of the call that waited
        files: list[str] = []
        while frame is not None:
            files.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
            frame = frame.f_back  # type: ignore[assignment]
        own = [item for item in files if "engine_adapter" in item and item.rsplit(":", 1)[0].endswith(ADAPTERS_OWN)]
        place = own[0] if own else next((item for item in files if "/vllm/" in item), files[-1])
        found[place] += 1

    rng, number_of_steps = random.Random(3), 0  # noqa: S311 - a reproducible disturbance

    def change(number: int, _: Any) -> bool:
        nonlocal number_of_steps
        number_of_steps += 1
        if number % 4 == 0:
            engine.set_k(rng.choice([0, *job["ks"]]))
        return True

    engine.serve(job["texts"][:2], 16)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        engine.serve(job["texts"], job["tokens"], change)
    own = {place: count for place, count in found.items() if place.rsplit(":", 1)[0].endswith(ADAPTERS_OWN)}
    return {"steps": number_of_steps, "waits": dict(found), "own": own, "compilations": compilations.messages}


class _Compilations(logging.Handler):
    """Keeps what vLLM's monitor of compilers says."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message of the monitor."""
        if record.levelno >= logging.WARNING and "jit_monitor" in record.pathname:
            self.messages.append(record.getMessage()[:300])


JOBS: dict[str, Callable[[Engine, dict[str, Any]], dict[str, Any]]] = {
    "replies": replies,
    "steps": steps,
    "caught up": caught_up,
    "waits": waits,
}


def main(job: dict[str, Any]) -> None:
    """Start the engine and do the job."""
    began = time.monotonic()
    engine = Engine(job["options"])
    start_s = time.monotonic() - began
    found = JOBS[job["kind"]](engine, job) | {"start_s": start_s}
    sys.stdout.write("\n" + json.dumps(found) + "\n")
    sys.stdout.flush()
    os._exit(0)  # what vLLM takes down by itself may hang where an engine is stepped by hand


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
