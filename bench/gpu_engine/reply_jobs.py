"""Jobs whose outcome needs no idle machine: replies at each K, acceptance after a period of K = 0, waits."""

import logging
import random
import sys
import warnings
from collections import Counter
from typing import Any

from specpilot.bench.gpu_engine.engine import Engine

ADAPTERS_OWN = ("backlog.py", "rows.py", "subset.py", "draft_width.py")
"""Modules whose operations on tensors are the adapter's own; its other wrappers call vLLM's."""

_WAITS = ("called a synchronizing CUDA operation", "sync detected", "pageable")
"""Words in the warnings of torch, and of vLLM's own check of copies, about a step that waits for the device."""

_BEHIND = 96
"""Tokens of each reply at K = 0 before drafting begins, for an engine that catches up."""

LIKELIEST = 5
"""Number of likeliest tokens beside each token of an engine without speculation."""


def replies(engine: Engine, job: dict[str, Any]) -> dict[str, Any]:
    """Reply at each K, and while K changes at random; without the adapter once."""
    texts, tokens = job["texts"], job["tokens"]
    engine.serve(texts[:1], 8)
    if engine.control is None:
        return _plain(engine, texts, tokens)
    ids: dict[str, list[list[int]]] = {}
    for k in job["ks"]:
        engine.set_k(k)
        ids[str(k)] = engine.serve(texts, tokens)
    rng = random.Random(3)  # noqa: S311 - a reproducible disturbance

    def change(number: int, _: Any) -> bool:
        if number % 3 == 0:
            engine.set_k(rng.choice([0, 0, *job["ks"]]))
        return True

    ids["changing"] = engine.serve(texts, tokens, change)
    return {"ids": ids}


def _plain(engine: Engine, texts: list[str], tokens: int) -> dict[str, Any]:
    """Reply without speculation; beside each token of a reply the likeliest tokens and their log probabilities."""
    names = engine.add(texts, tokens, logprobs=LIKELIEST)
    outputs = engine.run()
    completions = [outputs[name].outputs[0] for name in names]
    likeliest = [
        [
            sorted(((token, item.logprob) for token, item in place.items()), key=lambda pair: -pair[1])
            for place in logprobs
        ]
        for logprobs in (completion.logprobs or [] for completion in completions)
    ]
    return {"ids": {"plain": [list(completion.token_ids) for completion in completions]}, "likeliest": likeliest}


def caught_up(engine: Engine, job: dict[str, Any]) -> dict[str, Any]:
    """Return accepted and verified drafts after a period of K = 0: none, caught up, and not caught up."""
    scheduler, backlog = engine.core.scheduler, _backlog(engine.runner)
    verified, catch_up = scheduler.steps.note_draft, backlog.catch_up
    counted = {"verified": 0, "accepted": 0}
    way = ""

    def note(request: str, drafted: int, accepted: int, *others: Any) -> None:
        if scheduler.requests[request].num_output_tokens >= _BEHIND:
            counted["verified"] += drafted
            counted["accepted"] += accepted
        verified(request, drafted, accepted, *others)

    def catching_up(*args: Any) -> None:
        if way == "not caught up":
            backlog.rows.drop()
        catch_up(*args)

    scheduler.steps.note_draft, backlog.catch_up = note, catching_up
    by_way: dict[str, Any] = {}
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
        by_way[way] = dict(counted) | {"ids": ids}
    return by_way


def _backlog(runner: Any) -> Any:
    from specpilot.engine_adapter.vllm.v1.drafting import of_runner  # noqa: PLC0415 - imports vLLM

    drafting = of_runner(runner)
    assert drafting is not None
    return drafting.backlog


def waits(engine: Engine, job: dict[str, Any]) -> dict[str, Any]:
    """Count synchronisations and compilations after warm-up by vLLM's own checks, while K changes."""
    compilations = _Compilations()
    logging.getLogger("vllm").addHandler(compilations)
    places: Counter[str] = Counter()

    def note(message: Any, *_: Any, **__: Any) -> None:
        if not any(words in str(message) for words in _WAITS):
            return
        frame = sys._getframe()  # noqa: SLF001 - the stack of the call that waited
        files: list[str] = []
        while frame is not None:
            files.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
            frame = frame.f_back  # type: ignore[assignment]
        adapter_places = [
            item for item in files if "engine_adapter" in item and item.rsplit(":", 1)[0].endswith(ADAPTERS_OWN)
        ]
        place = adapter_places[0] if adapter_places else next((item for item in files if "/vllm/" in item), files[-1])
        places[place] += 1

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
    adapter_waits = {place: count for place, count in places.items() if place.rsplit(":", 1)[0].endswith(ADAPTERS_OWN)}
    return {
        "steps": number_of_steps,
        "waits": dict(places),
        "own": adapter_waits,
        "compilations": compilations.messages,
    }


class _Compilations(logging.Handler):
    """Keeps the messages of vLLM's monitor of compilers."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message of the monitor."""
        if record.levelno >= logging.WARNING and "jit_monitor" in record.pathname:
            self.messages.append(record.getMessage()[:300])
