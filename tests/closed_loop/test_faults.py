"""What the law does when its inputs fail it: hold, say so, recover."""

import numpy as np
import pytest

from specpilot.bench.ablations import IDEAS, without
from specpilot.bench.simulation.engine import K_MAX, MODEL, POOL, Engine, uniform
from specpilot.bench.simulation.loop import Run, simulate
from specpilot.bench.simulation.traffic import Phase, Source
from specpilot.controller.law.context import PoolContext
from specpilot.controller.law.control_law import ControlLaw
from specpilot.controller.law.reason import Reason
from specpilot.policy.types import Policy, Schedule

JSON = [Source("json", 8)]
WARM_UP = Phase(25, JSON)
PLAIN = Policy(MODEL, hold_out_ratio=0.0)


def changes_since(run: Run, second: int) -> int:
    return sum(item.result.reason in {Reason.GAIN, Reason.BOUNDS} for item in run.seconds[second:])


def test_silence_holds_the_schedule_and_says_idle() -> None:
    run = simulate([WARM_UP, Phase(30, []), Phase(10, JSON)])
    quiet = run.of_phase(1)
    assert {item.result.reason for item in quiet[5:]} == {Reason.IDLE}
    assert quiet[-1].result.publish == quiet[0].result.publish
    assert run.throughput(2) >= 0.95 * run.throughput(0, 15)


def test_a_restart_is_no_evidence_of_anything() -> None:
    def restart(second: int, fleet: list[Engine]) -> None:
        if second in (30, 31):
            fleet[0].restart(float(second))

    run = simulate([WARM_UP, Phase(30, JSON)], disturb=restart)
    assert changes_since(run, 26) <= 1
    assert run.throughput(1, 10) >= 0.95 * run.throughput(0, 15)


def test_a_restart_without_a_new_start_time_is_seen_in_the_counters() -> None:
    def restart(second: int, fleet: list[Engine]) -> None:
        if second == 30:
            fleet[0].restart(fleet[0].started_at)

    run = simulate([WARM_UP, Phase(30, JSON)], disturb=restart)
    assert changes_since(run, 26) <= 1


def test_a_series_that_vanishes_for_a_while_is_no_restart() -> None:
    """Its lifetime is no fresh evidence when it is back: the load does not jump, nor do the drafts."""
    engine, law = Engine("engine", np.random.default_rng(1)), ControlLaw()
    seen = []
    for second in range(8):
        engine.run(1.0, JSON, uniform(3))
        full = engine.observe(float(second))
        lost = max(full.values, key=lambda series: full.values[series])
        values = {series: value for series, value in full.values.items() if series != lost or second not in (5, 6)}
        law.observe([type(full)(full.engine_id, MODEL, POOL, full.at, 0.0, values)])
        look = law.snapshot(MODEL, POOL)
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
    newest = run.seconds[-1].result
    assert newest.k(newest.publish)["default:0"] == 0


def test_no_scrape_is_stale() -> None:
    run = simulate([WARM_UP, Phase(30, JSON)], is_scraped=lambda second: not 25 <= second < 40)
    assert {item.result.reason for item in run.seconds[31:38]} == {Reason.STALE}


def test_an_engine_that_joins_late_brings_only_its_step_times() -> None:
    joined, law = Engine("late", np.random.default_rng(9)), ControlLaw()
    joined.run(20.0, JSON, None)
    law.observe([joined.observe(0.0)])
    assert law._pool((MODEL, POOL)).load.mix == {}
    assert law._pool((MODEL, POOL)).cost.fit() is not None


def test_a_new_bound_takes_effect_in_the_next_tick() -> None:
    run = simulate([WARM_UP], policy=PLAIN)
    publish = run.seconds[-1].result.publish
    assert publish is not None
    start = Schedule(MODEL, POOL, 99, 0.0, 15.0, 0.0, publish)
    bounded = simulate([Phase(1, [])], policy=Policy(MODEL, k_max=1), start=start)
    assert bounded.seconds[0].result.reason is Reason.BOUNDS
    assert all(item.k <= 1 for ranges in (bounded.seconds[0].result.publish or {}).values() for item in ranges)


def test_tables_of_other_rows_are_compared_by_name() -> None:
    """A schedule in force with rows of a class that is gone, and as many of them, is read by what it says."""
    law, engine = ControlLaw(), Engine("engine", np.random.default_rng(1))
    in_force = Schedule(MODEL, POOL, 5, 0.0, 60.0, 0.0, {"default": uniform(2).classes["default"], "gone:7": uniform(7).classes["default"]})  # fmt: skip  # noqa: E501
    for second in range(2):
        engine.run(1.0, [], in_force)
        law.observe([engine.observe(float(second))])
    result = law.decide(PoolContext(MODEL, POOL, PLAIN, K_MAX, 3, 64, in_force), 1.0, 1.0)
    assert result.reason is Reason.IDLE
    assert {item.k for ranges in (result.publish or {}).values() for item in ranges} == {2}


def test_a_new_controller_knows_the_cost_of_what_its_predecessor_tried() -> None:
    engine = Engine("engine-0", np.random.default_rng(0))
    for k in range(8):
        engine.run(3.0, JSON, uniform(k))
    law = ControlLaw()
    law.observe([engine.observe(-1.0)])
    run = simulate([Phase(20, JSON)], law=law, start=uniform(4))
    assert Reason.TRIAL not in run.reasons


@pytest.mark.parametrize("idea", IDEAS)
def test_the_ablations_run(idea: str) -> None:
    with without(idea) as tuning:
        run = simulate([WARM_UP, Phase(10, [Source("code", 8)])], tuning=tuning)
    assert run.seconds[-1].throughput > 0
