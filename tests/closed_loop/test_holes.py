"""Requests that decoded while the drafter was off cannot speculate until they end: the longer, the dearer is K = 0.

The oracle knows no holes, so it cannot be reached where K = 0 was right and then is not.
"""

from collections.abc import Sequence

import numpy as np
import pytest

from controller.guard import Reason
from controller.observation import Series
from policy import engine_metrics as names
from policy.types import KRange, Schedule
from tests.closed_loop.plant import CODE, MODEL, POOL, Engine, Phase, StepTime, cpu_step_s, gpu_step_s
from tests.closed_loop.simulation import Run, simulate

LENGTHS = [200.0, 2000.0, 8000.0]


def total_regret(run: Run) -> float:
    return 1 - sum(tick.goodput for tick in run.ticks) / sum(tick.best for tick in run.ticks)


def ticks_off(run: Run) -> int:
    return sum(max(tick.k.values()) == 0 for tick in run.ticks)


def schedule(k: int, probe_ratio: float = 0.0) -> Schedule:
    return Schedule(MODEL, POOL, 1, 0.0, 15.0, probe_ratio, {"default": (KRange(1, 64, k),)})


def holed(engine: Engine) -> float:
    return engine.values[Series(names.HOLED_REQUESTS, ())]


def run(engine: Engine, k: int, seconds: float = 1.0, probe_ratio: float = 0.0) -> float:
    return engine.run(seconds, {"code": 8}, {"code": CODE}, schedule(k, probe_ratio), 1.0)


def test_the_plant_makes_holes_as_the_adapter_does() -> None:
    engine = Engine("one", np.random.default_rng(0), request_tokens=1000.0)
    speculating = run(engine, 4)
    assert holed(engine) == 0
    run(engine, 0)
    assert holed(engine) == 8
    after = [run(engine, 4) for _ in range(60)]
    assert after[0] < 0.75 * speculating
    assert np.mean(after[-10:]) > 0.95 * speculating


def test_a_spell_of_few_steps_leaves_no_holes_in_the_plant() -> None:
    engine = Engine("one", np.random.default_rng(0))
    run(engine, 4)
    run(engine, 0, seconds=0.03)
    run(engine, 4, seconds=0.1)
    assert holed(engine) == 0


def test_in_the_dark_only_new_requests_are_probed() -> None:
    def probed(request_tokens: float) -> float:
        engine = Engine("one", np.random.default_rng(0), request_tokens=request_tokens)
        run(engine, 0)
        before = engine.values[Series(names.TRIALS, ("code", "1"))]
        for _ in range(20):
            run(engine, 0, probe_ratio=0.02)
        return engine.values[Series(names.TRIALS, ("code", "1"))] - before

    assert 0 < probed(20_000.0) < 0.25 * probed(200.0)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(("step_s", "k"), [(cpu_step_s, 4), (gpu_step_s, 7)], ids=["cpu", "gpu"])
def test_a_cold_start_where_speculation_pays_never_looks_at_k_0(step_s: StepTime, k: int, length: float) -> None:
    """Whatever the cost of K = 0 may be, it could not win: the requests that run keep their speculation."""
    found = simulate([Phase(60, {"code": 8})], step_s=step_s, request_tokens=length)
    assert ticks_off(found) == 0
    assert found.ticks[-1].k == {"code": k}
    assert total_regret(found) <= 0.03


@pytest.mark.parametrize("length", LENGTHS)
def test_k_0_is_found_where_it_is_much_better(length: float) -> None:
    found = simulate([Phase(60, {"chat": 24})], request_tokens=length)
    assert found.ticks[-1].k == {"chat": 0}
    assert total_regret(found) <= 0.06


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("seed", range(3))
def test_on_a_gpu_shifting_traffic_costs_no_speculation(length: float, seed: int) -> None:
    loads: Sequence[dict[str, int]] = [{"code": 8}, {"chat": 6}, {"chat": 2}, {"code": 8}, {"json": 4}, {"code": 2}]
    found = simulate([Phase(20, load) for load in loads], step_s=gpu_step_s, seed=seed, request_tokens=length)
    assert total_regret(found) <= 0.03


@pytest.mark.parametrize(("length", "limit"), [(200.0, 0.03), (2000.0, 0.08), (8000.0, 0.2)])
@pytest.mark.parametrize("seed", range(3))
def test_where_k_0_comes_and_goes_the_regret_is_bounded(length: float, limit: float, seed: int) -> None:
    """Two of six phases want K = 0. The first requests of what follows meet it, and stay with it until they end."""
    loads: Sequence[dict[str, int]] = [{"code": 8}, {"chat": 16}, {"code": 8}, {"chat": 6}, {"chat": 2}, {"json": 4}]
    found = simulate([Phase(25, load) for load in loads], seed=seed, request_tokens=length)
    assert total_regret(found) <= limit


def test_nothing_is_explored_while_most_requests_cannot_follow() -> None:
    start = schedule(0)
    found = simulate([Phase(30, {"code": 8})], start=start, request_tokens=50_000.0)
    for before, tick in zip(found.ticks, found.ticks[1:], strict=False):
        if before.verdict.evidence.get("holed", 0) > 2 and tick.verdict.reason is Reason.EXPLORE:
            # Only what must be known at all: depths that nobody ever tried.
            assert tick.at <= 20
    assert found.ticks[-1].verdict.reason is not Reason.EXPLORE
