"""What the law does when its inputs fail it: hold, say so, recover."""

import numpy as np
import pytest

from specpilot.controller.decision.decider import Decider
from specpilot.controller.decision.reason import Reason
from specpilot.policy.model_policy import Policy
from specpilot.policy.names import K_LIMIT
from tests.simulation.engine import K_MAX, MODEL, POOL, Engine
from tests.simulation.loop import Run, simulate, uniform
from tests.simulation.traffic import Phase, Source

JSON = [Source("json", 8)]
WARM_UP = Phase(25, JSON)
PLAIN = Policy(MODEL, control_group_ratio=0.0)


def k_since(run: Run, second: int) -> float:
    """The mean K that the controller measured."""
    found = [item.result.k["default"] for item in run.seconds[second:] if "default" in item.result.k]
    return sum(found) / len(found)


def test_silence_holds_the_schedule_and_says_idle() -> None:
    run = simulate([WARM_UP, Phase(30, []), Phase(10, JSON)])
    quiet = run.of_phase(1)
    assert {item.result.reason for item in quiet[5:]} == {Reason.IDLE}
    assert quiet[-1].result.guidance == quiet[0].result.guidance
    assert run.throughput(2) >= 0.95 * run.throughput(0, 15)


@pytest.mark.parametrize(("seconds", "has_new_start_time"), [((30, 31), True), ((30,), False)])
def test_a_restart_is_no_evidence_of_anything(seconds: tuple[int, ...], *, has_new_start_time: bool) -> None:
    """Without a new start time it is seen in the counters."""

    def restart(second: int, fleet: list[Engine]) -> None:
        if second in seconds:
            fleet[0].restart(float(second) if has_new_start_time else fleet[0].started_at)

    run = simulate([WARM_UP, Phase(30, JSON)], disturb=restart)
    assert k_since(run, 36) > K_MAX - 1
    assert run.throughput(1, 10) >= 0.95 * run.throughput(0, 15)


def test_a_series_that_vanishes_for_a_while_is_no_restart() -> None:
    """Its lifetime is no fresh evidence when it is back: the load does not jump, nor do the drafts."""
    engine, law = Engine("engine", np.random.default_rng(1)), Decider()
    seen = []
    for second in range(8):
        engine.run(1.0, JSON, uniform(3))
        full = engine.observe(float(second))
        lost = max(full.values, key=lambda series: full.values[series])
        values = {series: value for series, value in full.values.items() if series != lost or second not in (5, 6)}
        law.observe([type(full)(full.engine_id, MODEL, POOL, full.at, 0.0, values)])
        look = law._pools[MODEL, POOL].newest
        assert look is not None
        seen.append(sum(look.evidence.trials.values()))
    usual = float(np.median(seen[1:5]))
    assert max(seen[5:]) <= 4 * usual


def test_counters_that_stand_still_are_stale_and_the_schedule_is_held() -> None:
    def lie(second: int, fleet: list[Engine]) -> None:
        fleet[0].is_lying = 25 <= second < 45

    run = simulate([WARM_UP, Phase(40, JSON)], disturb=lie)
    assert {item.result.reason for item in run.seconds[32:44]} == {Reason.STALE}
    assert run.seconds[-1].result.reason is not Reason.STALE


def test_one_lying_engine_of_two_does_not_stop_the_law() -> None:
    def lie(second: int, fleet: list[Engine]) -> None:
        fleet[1].is_lying = second >= 20

    run = simulate([WARM_UP, Phase(20, [Source("code_hot", 16)])], disturb=lie, engines=2)
    assert k_since(run, 40) < 0.5


def test_no_scrape_is_stale() -> None:
    run = simulate([WARM_UP, Phase(30, JSON)], is_scraped=lambda second: not 25 <= second < 40)
    assert {item.result.reason for item in run.seconds[31:38]} == {Reason.STALE}


def test_an_engine_that_joins_late_brings_no_evidence_of_before() -> None:
    joined, law = Engine("late", np.random.default_rng(9)), Decider()
    joined.run(20.0, JSON, None)
    law.observe([joined.observe(0.0)])
    pool = law._pool((MODEL, POOL))
    assert (pool.engines, pool.is_idle) == ({}, True)


def test_a_new_bound_takes_effect_in_the_next_tick_also_where_nothing_runs() -> None:
    run = simulate([WARM_UP, Phase(10, [])], policy=PLAIN, later=(30, Policy(MODEL, control_group_ratio=0.0, k_max=1)))
    before, after = run.seconds[28].result, run.seconds[30].result
    assert (before.reason, after.reason) == (Reason.IDLE, Reason.IDLE)
    for result, k_max in ((before, K_MAX), (after, 1)):
        assert result.guidance is not None
        assert result.guidance.classes["default"].k_max == (1 if k_max == 1 else K_LIMIT)
