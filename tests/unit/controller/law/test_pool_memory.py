import pytest

from specpilot.controller.estimation.observation import Cell, CellSums, Evidence
from specpilot.controller.law.context import PoolContext
from specpilot.controller.law.pool_memory import PoolMemory
from specpilot.controller.pools import in_window
from specpilot.controller.tuning import Tuning
from specpilot.policy.canary import Arm, Canary, Experiment, Outcome
from specpilot.policy.types import KRange, Policy, Schedule


def schedule(k: int) -> Schedule:
    return Schedule("m", "p", 1, 0.0, 60.0, 0.0, {"default": (KRange(1, 64, k),)})


@pytest.mark.parametrize("every_s", [0.5, 2.0, 4.5])
def test_a_busy_pool_is_not_idle_however_rarely_it_is_looked_at(every_s: float) -> None:
    pool = PoolMemory.new(Tuning())
    cells = {Cell(4, 4, 0, 0): CellSums(10.0, 0.1, 40.0, 40.0)}
    busy = Evidence(drafts={("a", 3, 0): 40.0}, decode_tokens={("a", 3): 40.0}, cells=cells, running={"a": 4})
    for look in range(3):
        pool.take(busy, {"one": 4}, every_s, look * every_s)
        assert not pool.is_idle
    assert not pool.is_stale(3 * every_s)
    pool.take(Evidence(), {}, 2.5, 2 * every_s + 2.5)
    assert pool.is_idle


def test_looks_at_one_engine_after_another_take_the_time_that_passes_between_them() -> None:
    """Four engines, each scraped every 2 s at its own time: the requests of one are not gone between its scrapes."""
    pool = PoolMemory.new(Tuning())
    cells = {Cell(4, 4, 0, 0): CellSums(10.0, 0.1, 40.0, 40.0)}
    for look in range(12):
        tokens = {("a", 7): 40.0} if look % 4 == 0 else {("a", 3): 40.0}
        drafts = {(name, band, 0): count for (name, band), count in tokens.items()}
        seen = Evidence(drafts=drafts, decode_tokens=tokens, cells=cells, running={"a": 4})
        pool.take(seen, {f"engine-{look % 4}": 4}, 2.0, 0.5 * look)
        assert ("a", 7) in pool.load.mix
    assert pool.cost._traffic_s == pytest.approx(2.0 + 11 * 0.5)


@pytest.mark.parametrize("every_s", [0.5, 2.0, 4.0])
def test_one_look_at_idle_engines_alone_makes_no_pool_idle(every_s: float) -> None:
    """A server scrapes each engine at its own time, sometimes late: a snapshot may hold one engine's sample alone."""
    pool = PoolMemory.new(Tuning().for_snapshots(every_s))
    cells = {Cell(4, 4, 0, 0): CellSums(10.0, 0.1, 40.0, 40.0)}
    busy = Evidence(drafts={("a", 3, 0): 40.0}, decode_tokens={("a", 3): 40.0}, cells=cells, running={"a": 4})
    pool.take(busy, {"one": 4}, every_s, 0.0)
    pool.take(Evidence(), {"two": 0}, every_s, 1.4 * every_s)
    assert not pool.is_idle
    pool.take(Evidence(), {"one": 0, "two": 0}, every_s, max(2.0, 2 * every_s) + 0.1)
    assert pool.is_idle


PRESENTS, CANARYS = schedule(1), schedule(4)


@pytest.mark.parametrize("last", Arm)
@pytest.mark.parametrize("remaining_arm", Arm)
def test_when_a_canary_ends_the_pool_goes_on_as_the_arm_whose_policy_stays(last: Arm, remaining_arm: Arm) -> None:
    pool = PoolMemory.new(Tuning())
    assert pool.begin(Arm.PRESENT, Arm.PRESENT, PRESENTS) == PRESENTS
    assert pool.begin(Arm.CANARY, Arm.PRESENT, PRESENTS) == PRESENTS
    own = {Arm.PRESENT: PRESENTS, Arm.CANARY: CANARYS}
    if last is Arm.PRESENT:
        assert pool.begin(last, Arm.PRESENT, CANARYS) == PRESENTS
    assert pool.begin(None, remaining_arm, own[last]) == own[remaining_arm]
    assert pool.begin(None, remaining_arm, own[remaining_arm]) == own[remaining_arm]
    assert (pool.arm, pool.parked) == (Arm.PRESENT, {})


@pytest.mark.parametrize("outcome", Outcome)
def test_the_heir_is_the_canary_after_a_promotion_only(outcome: Outcome) -> None:
    context = PoolContext("m", "p", Policy("m"), 7, 3, 64, None)
    ended = Experiment(2, "id", Canary(Policy("m")), 1, 0.0, ended_at=1.0, outcome=outcome)
    found = in_window(context, ended, 5.0)
    assert (found.remaining_arm, found.arm) == (Arm.CANARY if outcome.is_promotion else Arm.PRESENT, None)
