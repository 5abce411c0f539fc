"""The order of an engine's measurements, and the outcome when the time is over, with a simulated engine."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from specpilot.bench.gpu_engine import step_jobs
from specpilot.bench.gpu_engine.cells import cells, stock
from specpilot.bench.gpu_engine.step_jobs import StepJob


class Runner:
    def _determine_batch_execution_and_padding(self, **asked: Any) -> Any:
        return SimpleNamespace(name="FULL"), SimpleNamespace(num_tokens=asked["num_reqs"])


class StandInEngine:
    """Answers each step with one token for every request; records the K that were set, and the arrivals."""

    def __init__(self, *, is_stock: bool = False) -> None:
        def nothing(*_: Any, **__: Any) -> None:
            pass

        self.core = SimpleNamespace(
            scheduler=SimpleNamespace(schedule=nothing, update_from_output=nothing),
            model_executor=SimpleNamespace(execute_model=nothing, sample_tokens=nothing),
            step_fn=nothing,
        )
        self.runner = Runner()
        self.control = None if is_stock else object()
        self.ks: list[Any] = []
        self.arrived = 0
        self.groups: list[int] = []

    def set_k(self, k: Any) -> None:
        self.ks.append(k)

    def prompt_of(self, tokens: int, text: str) -> dict[str, list[int]]:
        del text
        return {"prompt_token_ids": [1] * tokens}

    def add(self, prompts: list[Any], tokens: int) -> None:
        assert tokens > 0
        self.arrived += len(prompts)

    def serve(self, texts: list[str], tokens: int, on_step: Callable[[int, list[Any]], bool], groups: int = 1) -> None:
        self.groups.append(groups)
        for number in range(1, tokens + 1):
            self.core.step_fn()
            self.core.model_executor.execute_model()
            self.runner._determine_batch_execution_and_padding(num_reqs=len(texts), max_num_scheduled_tokens=1)
            outputs = [
                SimpleNamespace(request_id=str(place), outputs=[SimpleNamespace(token_ids=[1] * number)])
                for place in range(len(texts))
            ]
            if not on_step(number, outputs):
                return


def job(**more: Any) -> dict[str, Any]:
    return {
        "cells": [cell.plain() for cell in cells([1, 4], [0, 3, 7], 7)],
        "arrivals": [
            {"running": 3, "k": 0, "every": 12, "count": 2, "prompt_tokens": 24, "reply_tokens": 4},
        ],
        "texts": ["a"] * 8, "rounds": 2, "steps": 5, "profiled_steps": 0, "k_max": 7, "longest_reply": 1700, **more,
    }  # fmt: skip


@pytest.fixture(autouse=True)
def pace(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let the fixed loop take these milliseconds, probe after probe, and 1 after the last."""
    paces = list[float]()
    monkeypatch.setattr(step_jobs, "probe_ms", lambda: paces.pop(0) if paces else 1.0)
    return paces


@pytest.fixture(autouse=True)
def collected(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the calls of the garbage collector, which has a whole test run's objects here."""
    asked = list[str]()
    for name in ("collect", "freeze"):
        monkeypatch.setattr(step_jobs.gc, name, lambda name=name: asked.append(name))
    return asked


@pytest.fixture(autouse=True)
def even(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep any cell's measurements from disagreeing: here each takes some microseconds."""
    monkeypatch.setattr(step_jobs, "disputed", lambda _: [])


def run(engine: StandInEngine, **more: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    emitted = list[dict[str, Any]]()
    return StepJob(engine, job(**more), emitted.append).run(), emitted  # type: ignore[arg-type]


def names(found: list[dict[str, Any]]) -> list[str]:
    return [repr(item["cell"]) for item in found]


def test_every_cell_is_measured_once_before_any_is_measured_again(collected: list[str]) -> None:
    engine = StandInEngine()
    found, emitted = run(engine)
    measured = names(found["measured"])
    assert len(measured) == 18
    assert sorted(measured[:9]) == sorted(measured[9:]) == sorted({*measured})
    assert measured[:9] != measured[9:]
    assert len(found["arrivals"]) == 2
    assert (engine.arrived, found["stopped"]) == (4, None)
    assert len(emitted) == 20
    assert [len(item["arrivals"]) for item in emitted[8:10]] == [0, 1]  # after the first round
    assert all(item["step_ms"] > 0 and item["tokens_per_step"] == item["cell"]["running"] for item in found["measured"])
    assert found["measured"][0]["graphs"][0][2] == "FULL"
    assert collected[:2] == ["collect", "freeze"]
    assert len(collected) == 2 + 20  # nothing is collected while a cell is timed


def test_groups_of_a_random_batch_swap_their_k_before_each_step() -> None:
    engine = StandInEngine()
    run(engine, cells=[{"kind": "random", "running": 4, "ks": [0, 2, 4, 6]}], arrivals=[], rounds=1)
    assert engine.groups == [4]
    assert all(sorted(item) == [0, 2, 4, 6] for item in engine.ks)
    assert len({tuple(item) for item in engine.ks}) > 3


def test_what_was_measured_at_another_pace_is_measured_once_more(pace: list[float]) -> None:
    pace += [1.0] * 6 + [1.32] * 2
    found, _ = run(StandInEngine(), arrivals=[])
    assert len(found["measured"]) == 19
    assert found["measured"][18]["cell"] == found["measured"][3]["cell"]
    assert found["measured"][18]["is_again"]
    assert found["measured"][3]["pace_ms"] == 1.32


def test_stock_vllm_is_given_no_k() -> None:
    engine = StandInEngine(is_stock=True)
    arrival = {"running": 3, "k": None, "every": 12, "count": 1, "prompt_tokens": 24, "reply_tokens": 4}
    found, _ = run(engine, cells=[cell.plain() for cell in stock([1, 4])], arrivals=[arrival])
    assert engine.ks == []
    assert found["arrivals"][0]["periods"] == 1


def test_a_job_stops_when_its_time_is_over_and_keeps_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(1000))
    monkeypatch.setattr(step_jobs.time, "monotonic", lambda: float(next(now)))
    found, emitted = run(StandInEngine(), timed_s=20.0)
    assert "stopped" in found["stopped"]
    assert 0 < len(found["measured"]) < 18
    assert emitted[-1]["measured"] == found["measured"]
    found, _ = run(StandInEngine(), until=0.0)
    assert found["measured"] == []


def test_the_profiler_comes_last_and_says_what_is_unknown_without_a_device() -> None:
    found, _ = run(StandInEngine(), profiled_steps=3)
    assert len(found["device"]) == 9
    assert all(item["busy_ms"] is None for item in found["device"])
