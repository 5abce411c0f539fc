"""Pins, bounds and modes hold for everything that is published: what is chosen, tried, probed and held out."""

from itertools import pairwise

import numpy as np
import pytest

from specpilot.bench.simulation.engine import K_MAX, MODEL, POOL, Engine, uniform
from specpilot.bench.simulation.loop import Run, simulate
from specpilot.bench.simulation.traffic import Phase, Source
from specpilot.controller.law.context import PoolContext
from specpilot.controller.law.control_law import ControlLaw
from specpilot.controller.law.k_table import Ranges
from specpilot.controller.law.reason import Reason
from specpilot.controller.tuning import Tuning
from specpilot.policy.types import DEFAULT_CLASS, ClassPolicy, KRange, Mode, Policy, Schedule, Trial
from tests.closed_loop.single_k import of_single_k


def policy(hold_out_ratio: float = 0.0, **classes: ClassPolicy) -> Policy:
    return Policy(MODEL, hold_out_ratio=hold_out_ratio, classes=classes)


def published(run: Run) -> list[Ranges]:
    found: list[Ranges] = []
    for second in run.seconds:
        assert second.result.publish is not None
        found.append(second.result.publish)
        if second.result.trial is not None:
            found.append(second.result.trial.classes)
    return found


def ks(rows: Ranges, traffic_class: str) -> set[int]:
    return {item.k for name, ranges in rows.items() if name.partition(":")[0] == traffic_class for item in ranges}


def test_a_pin_of_a_class_that_is_not_there_restricts_nobody() -> None:
    phase = Phase(30, [Source("code_hot", 16)])
    run = simulate([phase], policy=policy(batch=ClassPolicy(pin=7)), seed=1)
    assert any(second.result.trial and ks(second.result.trial.classes, "default") == {0} for second in run.seconds) or (
        ks(published(run)[-1], "default") & {0}
    )
    assert run.throughput(0, 8) >= 0.95 * of_single_k(phase, 0)


@pytest.mark.parametrize("hold_out_ratio", [0.0, 0.3])
def test_pins_and_bounds_hold_whatever_is_published(hold_out_ratio: float) -> None:
    wanted = policy(hold_out_ratio, pinned=ClassPolicy(pin=5), small=ClassPolicy(k_max=2), large=ClassPolicy(k_min=4))
    sources = [Source("json", 4, "pinned"), Source("json", 4, "small"), Source("chat_hot", 4, "large")]
    run = simulate([Phase(40, sources)], policy=wanted, seed=2)
    for rows in published(run):
        assert ks(rows, "pinned") == {5}
        assert ks(rows, "small") <= {0, 1, 2}
        assert ks(rows, "large") <= {4, 5, 6, 7}
        assert "pinned:0" not in rows  # a row without a band is not probed


def test_probes_of_a_bounded_pool_stay_within_its_bounds() -> None:
    run = simulate([Phase(30, [Source("json", 4), Source("code_hot", 12)])], policy=Policy(MODEL, k_max=2))
    assert run.fleet[0].deepest_probe <= 2
    assert {k for rows in published(run) for k in ks(rows, "default")} <= {0, 1, 2}


def test_advise_publishes_nothing_at_all_and_tells_what_it_would() -> None:
    run = simulate([Phase(30, [Source("json", 8)])], policy=Policy(MODEL, mode=Mode.ADVISE))
    assert all(second.result.publish is None and second.result.trial is None for second in run.seconds)
    assert all(second.result.probe_ratio == 0 for second in run.seconds)
    assert run.reasons >= {Reason.GAIN, Reason.OPTIMAL}
    newest = run.seconds[-1].result
    assert newest.k(newest.proposed)["default:7"] == 7


def test_advise_publishes_nothing_where_no_engine_can_speculate_either() -> None:
    result = ControlLaw().decide(PoolContext(MODEL, POOL, Policy(MODEL, mode=Mode.ADVISE), 0, 0, 64, None), 1.0, 1.0)
    assert (result.reason, result.publish) == (Reason.NO_DRAFTER, None)


def test_off_publishes_the_static_k_without_a_probe() -> None:
    run = simulate([Phase(10, [Source("json", 8)])], policy=Policy(MODEL, mode=Mode.OFF, static_k=2))
    assert {k for rows in published(run) for k in ks(rows, "default")} == {2}
    assert {second.result.probe_ratio for second in run.seconds} == {0.0}


def test_a_trial_is_on_one_engine_and_ends_by_itself() -> None:
    run = simulate([Phase(30, [Source("json", 8)])], engines=3, is_calibrated=False)
    tried = [second.result.trial for second in run.seconds if second.result.trial]
    assert tried
    assert {trial.valid_for_s for trial in tried} == {Tuning().trial_limit_s}  # nobody repeats it
    for second in run.seconds:
        if second.in_force and second.in_force.trial:
            others = {item.engine_id for item in run.fleet} - {second.in_force.trial.engine_id}
            assert len(others) == 2
            for engine_id in others:
                assert second.in_force.rows_of(engine_id) == second.in_force.classes


def test_a_trial_is_on_an_engine_that_runs_what_the_pool_runs_on_average() -> None:
    """What is measured at another load would not answer the question."""
    of_engine = {"engine-0": [Source("json", 3)], "engine-1": [Source("json", 11)], "engine-2": [Source("json", 24)]}
    run = simulate([Phase(40, [Source("json", 12)], of_engine=of_engine)], engines=3, is_calibrated=False)
    tried = {second.result.trial.engine_id for second in run.seconds if second.result.trial}
    assert tried == {"engine-1"}


def test_a_trial_goes_on_where_the_engines_of_a_pool_are_read_in_turn() -> None:
    """A scrape of another engine says nothing about the one that tries."""
    law, in_force, tried = ControlLaw(), uniform(7), list[Trial | None]()
    engines = [Engine(f"engine-{index}", np.random.default_rng(index)) for index in range(2)]
    law.observe(engine.observe(0.0) for engine in engines)
    for second in range(1, 20):
        for engine in engines:
            engine.run(1.0, [Source("json", 8)], in_force)
        law.observe([engines[second % 2].observe(float(second))])
        context = PoolContext(MODEL, POOL, policy(), K_MAX, 3, 64, in_force)
        result = law.decide(context, float(second), float(second))
        tried.append(result.trial)
        in_force = Schedule(MODEL, POOL, second + 1, 0.0, 60.0, 0.0, result.publish or in_force.classes, result.trial)
    assert any(one and two and one.engine_id == two.engine_id for one, two in pairwise(tried))


def test_a_trial_breaks_no_slo_that_it_can_foresee() -> None:
    """With the bound below what drafting deep takes, K_max is never tried."""
    bound = Policy(MODEL, hold_out_ratio=0.0, classes={"default": ClassPolicy(itl_slo_ms=6.0)})
    run = simulate([Phase(40, [Source("code", 24)])], policy=bound, static_k=1)
    for second in run.seconds:
        if second.result.trial:
            assert max(ks(second.result.trial.classes, "default")) < 7


def test_a_gain_at_loads_that_do_not_occur_leaves_the_present_loads_k_alone() -> None:
    """K = 5 is less than the minimum below the best for these 4 requests, and K = 0 for 40 more than a tenth."""
    ranges = (KRange(1, 16, 5), KRange(17, 64, 0))
    start = Schedule(MODEL, POOL, 1, 0.0, 60.0, 0.0, {DEFAULT_CLASS: ranges})
    wanted = Policy(MODEL, hold_out_ratio=0.0, minimum_gain_ratio=0.5)
    run = simulate([Phase(20, [Source("json", 4)])], policy=wanted, start=start)
    last = published(run)[-1]["default:7"]
    assert {k for lo, hi, k in last if lo <= 4 <= hi} == {5}
    assert min(k for lo, hi, k in last if lo <= 40 <= hi) >= 4
