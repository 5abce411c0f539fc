"""What the loop does when its inputs fail it: hold, say so, recover."""

from copy import deepcopy
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from controller.facts import Facts
from controller.guard import Reason
from controller.pilot import Pilot
from controller.tuning import Tuning
from policy.types import ClassPolicy, KRange, Mode, Policy, Schedule
from tests.closed_loop.plant import CHAT, CODE, JSON, MODEL, POOL, Engine, Phase
from tests.closed_loop.simulation import Run, simulate

WARM_UP = Phase(20, {"code": 8})


def changes_of_k(run: Run, since: int) -> int:
    k = [tick.k for tick in run.ticks[since:]]
    return sum(a != b for a, b in pairwise(k))


def test_silence_holds_the_schedule_and_says_idle() -> None:
    run = simulate([WARM_UP, Phase(30, {}), Phase(10, {"code": 8})])
    quiet = run.of_phase(1)
    assert {tick.verdict.reason for tick in quiet[5:]} == {Reason.IDLE}
    assert quiet[-1].verdict.publish == quiet[0].verdict.publish
    assert run.of_phase(2)[0].goodput >= 0.97 * run.of_phase(2)[0].best


def test_an_engine_restart_is_not_read_as_evidence_of_anything() -> None:
    def restart(second: int, fleet: list[Engine]) -> None:
        if second in (30, 31):
            fleet[0].restart(float(second))

    run = simulate([WARM_UP, Phase(30, {"code": 8})], disturb=restart)
    assert changes_of_k(run, 21) == 0
    assert run.regret(1) <= 0.03


def test_a_restart_without_a_new_start_time_is_seen_in_the_counters() -> None:
    def restart(second: int, fleet: list[Engine]) -> None:
        if second == 30:
            fleet[0].restart(fleet[0].started_at)

    run = simulate([WARM_UP, Phase(30, {"code": 8})], disturb=restart)
    assert changes_of_k(run, 21) == 0


def test_counters_that_stand_still_are_stale_and_the_schedule_is_held() -> None:
    def lie(second: int, fleet: list[Engine]) -> None:
        fleet[0].is_lying = 25 <= second < 45

    run = simulate([WARM_UP, Phase(40, {"code": 8})], disturb=lie)
    lying = run.ticks[32:44]
    assert {tick.verdict.reason for tick in lying} == {Reason.STALE}
    assert changes_of_k(run, 21) == 0
    assert run.ticks[-1].verdict.reason is not Reason.STALE


def test_one_lying_engine_of_two_does_not_stop_the_law() -> None:
    def lie(second: int, fleet: list[Engine]) -> None:
        fleet[1].is_lying = second >= 20

    run = simulate([WARM_UP, Phase(20, {"chat": 8})], disturb=lie, engines=2)
    assert run.of_phase(1)[-1].k == {"chat": 0}


def test_no_scrape_is_stale() -> None:
    run = simulate([WARM_UP, Phase(30, {"code": 8})], is_scraped=lambda second: not 25 <= second < 40)
    assert {tick.verdict.reason for tick in run.ticks[31:38]} == {Reason.STALE}
    assert changes_of_k(run, 21) == 0


def test_ticks_without_a_new_look_count_nothing_twice() -> None:
    """As when a Prometheus server scrapes less often than the controller decides."""
    pilot, facts = Pilot(), Facts(MODEL, POOL, Policy(MODEL), 7, 3, 64, None)
    run = simulate([WARM_UP], pilot=pilot)
    guard = pilot._pool((MODEL, POOL)).guard
    before = deepcopy((guard._biases, guard._watch, guard._noise))
    schedule = Schedule(MODEL, POOL, 99, 20.0, 60.0, 0.0, run.ticks[-1].verdict.publish)
    verdicts = [pilot.steer(replace(facts, in_force=schedule), 20.0 + second / 10) for second in range(5)]
    assert (guard._biases, guard._watch, guard._noise) == before
    assert all(item.publish == schedule.classes for item in verdicts)


def test_an_engine_that_joins_late_brings_only_its_step_times() -> None:
    run = simulate([WARM_UP], seed=3)
    joined = Engine("late", np.random.default_rng(9))
    joined.run(100.0, {"code": 8}, {"code": CODE}, None, 1.0)
    pilot = Pilot()
    pilot.observe([joined.observe(0.0)])
    assert pilot._pool((MODEL, POOL)).load.mix == {}
    assert pilot._pool((MODEL, POOL)).cost.fit() is not None
    assert run.ticks


@pytest.mark.parametrize("name", ["json", "other"])
def test_traffic_of_a_class_that_nobody_drafted_for_yet_is_decided_on(name: str) -> None:
    """As a new controller may find it: all of it at K = 0. The class `other` is nobody's in particular."""
    pilot, engine, second = Pilot(), Engine("engine", np.random.default_rng(1)), 0.0
    verdicts = []
    for traffic_class, k in (("code", 7), ("code", 2), ("code", 0), (name, 0)):
        schedule = Schedule(MODEL, POOL, 1, 0.0, 60.0, 0.0, {"default": (KRange(1, 64, k),)})
        facts = Facts(MODEL, POOL, Policy(MODEL, mode=Mode.ADVISE), 7, 3, 64, schedule)
        for _ in range(5):
            engine.run(1.0, {traffic_class: 8}, {"code": CODE, name: JSON}, schedule, 1.0)
            second += 1.0
            pilot.observe([engine.observe(second)])
            verdicts.append(pilot.steer(facts, second))
    assert "goodput" in verdicts[-6].evidence  # cost and acceptance are known by then
    assert ("json" in verdicts[-1].wanted) == (name == "json")
    assert (verdicts[-1].reason is Reason.ACCEPTANCE_UNKNOWN) == (name == "other")


def test_bounds_and_pins_hold_in_every_tick() -> None:
    policy = Policy(
        model=MODEL, k_min=1, k_max=5, classes={"chat": ClassPolicy(pin=2), "json": ClassPolicy(k_max=6, k_min=3)}
    )
    run = simulate(
        [Phase(15, {"code": 8}), Phase(15, {"chat": 8, "json": 4}), Phase(15, {"code": 1, "chat": 1})], policy=policy
    )
    for tick in run.ticks:
        for name, ranges in tick.verdict.publish.items():
            low, high = {"chat": (2, 2), "json": (3, 6)}.get(name, (1, 5))
            assert all(low <= item.k <= high for item in ranges), (tick.at, name, ranges)


def test_a_new_bound_takes_effect_in_the_next_tick() -> None:
    pilot = Pilot()
    run = simulate([WARM_UP], pilot=pilot)
    last = run.ticks[-1].verdict
    start = Schedule(MODEL, POOL, 99, 0.0, 15.0, 0.0, last.publish)
    bounded = simulate([Phase(1, {})], policy=Policy(model=MODEL, k_max=1), start=start)
    assert bounded.ticks[0].verdict.reason is Reason.BOUNDS
    assert all(item.k <= 1 for ranges in bounded.ticks[0].verdict.publish.values() for item in ranges)


def test_a_new_controller_keeps_its_predecessors_schedule_and_knows_the_cost_of_other_k() -> None:
    def everywhere(k: int) -> Schedule:
        ranges = (KRange(1, 64, k),)
        return Schedule(MODEL, POOL, 7, 0.0, 15.0, 0.02, {"default": ranges, "code": ranges})

    engine = Engine("engine-0", np.random.default_rng(0))
    for k in range(8):
        engine.run(5.0, {"code": 8}, {"code": CODE}, everywhere(k), 1.0)
    pilot = Pilot()
    pilot.observe([engine.observe(-1.0)])
    run = simulate([Phase(20, {"code": 8})], pilot=pilot, start=everywhere(4))
    assert Reason.EXPLORE not in run.reasons
    assert {tick.k["code"] for tick in run.ticks} <= {4, 5}


def test_the_ablations_run() -> None:
    phases = [WARM_UP, Phase(10, {"code": 8}, {"code": CHAT}), Phase(10, {"code": 8}, {"code": JSON})]
    for tuning in (Tuning(detect_changes=False), Tuning(guard=False), Tuning(freeze_cost=True)):
        run = simulate(phases, tuning=tuning)
        assert run.ticks[-1].goodput > 0.5 * run.ticks[-1].best
