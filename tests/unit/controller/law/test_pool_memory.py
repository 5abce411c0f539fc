from dataclasses import replace

import pytest

from specpilot.controller.estimation.observation import Evidence
from specpilot.controller.law.pool_memory import PoolMemory
from specpilot.policy.canary import Arm
from specpilot.policy.prices import KNOTS, PARTS, Coefficients, PriceList
from specpilot.policy.schedule import KRange

BUSY = Evidence(drafts={("a", 3, 0): 40.0}, decode_tokens={("a", 3): 40.0}, steps_by={"decode": 10.0}, running={"a": 4})


@pytest.mark.parametrize("every_s", [0.5, 2.0, 4.5])
def test_a_busy_pool_is_not_idle_however_rarely_it_is_looked_at(every_s: float) -> None:
    pool = PoolMemory()
    for look in range(3):
        pool.add_snapshot(BUSY, every_s, look * every_s, 0.1)
        assert not pool.is_idle
    assert not pool.is_stale(3 * every_s)
    pool.add_snapshot(Evidence(), 2.5, 2 * every_s + 2.5, 0.0)
    assert pool.is_idle


@pytest.mark.parametrize("every_s", [0.5, 2.0, 4.0])
def test_one_look_at_idle_engines_alone_makes_no_pool_idle(every_s: float) -> None:
    """A server scrapes each engine at its own time, sometimes late: a snapshot may hold one engine's sample alone."""
    pool = PoolMemory(every_s)
    pool.add_snapshot(BUSY, every_s, 0.0, 0.1)
    pool.add_snapshot(Evidence(), every_s, 1.4 * every_s, 0.0)
    assert not pool.is_idle
    pool.add_snapshot(Evidence(), every_s, max(2.0, 2 * every_s) + 0.1, 0.0)
    assert pool.is_idle


@pytest.mark.parametrize("arm", Arm)
def test_what_was_estimated_under_one_arms_policy_does_not_hold_under_the_others(arm: Arm) -> None:
    pool = PoolMemory()
    rows = {"default": (KRange(1, 64, 3),)}
    pool.start_tick(arm)
    pool.chosen, pool.baseline = rows, (rows, 0.005)
    pool.start_tick(arm)
    assert (pool.chosen, pool.baseline) == (rows, (rows, 0.005))
    pool.start_tick(Arm.CANARY if arm is Arm.PRESENT else Arm.PRESENT)
    assert (pool.chosen, pool.baseline) == (None, None)


def test_an_engine_that_is_no_longer_scraped_leaves_the_estimate() -> None:
    pool = PoolMemory()
    for at in range(20):
        for name in ("gone", "here"):
            if name == "here" or at < 8:
                pool.add_engine_snapshot(name, BUSY, 1.0, float(at), None)
    assert pool.fresh_mixes(9.0).keys() == {"gone", "here"}
    assert pool.fresh_mixes(19.0).keys() == {"here"}


def test_steps_that_only_prefill_lower_no_mean() -> None:
    pool = PoolMemory()
    evidence = replace(BUSY, steps_by={"decode": 10.0, "prompt": 30.0}, decode_s=0.1)
    pool.add_engine_snapshot("one", evidence, 1.0, 1.0, None)
    assert pool.mixes["one"].running == pytest.approx(4.0)
    assert pool.engines["one"].step_s == pytest.approx(0.01)


@pytest.mark.parametrize(("decode_s", "cost_s"), [(0.1, 0.1 + 1e-4 * 0.5 * 20), (0.0, 0.0)])
def test_the_cost_of_decodes_has_the_later_catching_up_of_those_left_out(decode_s: float, cost_s: float) -> None:
    """An engine that does not report the time of decoding has no cost."""
    prices = PriceList(Coefficients((0.0,) * len(PARTS), (0.0,) * len(KNOTS)), left_out_s=1e-4)
    evidence = replace(BUSY, drafts={("a", 3, 0): 20.0, ("a", 3, 3): 20.0}, decode_s=decode_s)
    assert PoolMemory().add_engine_snapshot("one", evidence, 1.0, 1.0, prices) == pytest.approx(cost_s)
