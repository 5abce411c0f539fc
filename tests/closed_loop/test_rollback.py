"""A change that makes goodput fall: rolled back, not repeated at once, and taken up again when its cause is gone.

The drafter's deep positions are worthless, and from a moment on the engine's counters claim that nearly all of them are
accepted. So the law is sure that a deep K pays. Only the tokens delivered tell otherwise.
"""

from itertools import pairwise

import pytest

from controller.guard import Reason
from tests.closed_loop.plant import CODE, JSON, Engine, Phase
from tests.closed_loop.simulation import Run, simulate

HONEST_S, LYING_S, HEALED_S = 60, 200, 240
DEEP = (4, 5, 6, 7)
SHALLOW_TRUTH = (*CODE[:3], *(0.05 for _ in DEEP))
ROLL_BACK_TICKS = 5  # one until engines follow, three samples, one to act
FIRST_BACK_OFF_S = 10


def lied_to(seed: int) -> Run:
    def lie(second: int, fleet: list[Engine]) -> None:
        for engine in fleet:
            engine.claims = dict.fromkeys(DEEP, 0.99) if HONEST_S <= second < HONEST_S + LYING_S else {}

    phases = [
        Phase(HONEST_S, {"code": 8}, {"code": SHALLOW_TRUTH}),
        Phase(LYING_S, {"code": 8}),
        Phase(HEALED_S, {"code": 8}, {"code": JSON}),
    ]
    return simulate(phases, seed=seed, disturb=lie)


@pytest.mark.parametrize("seed", range(3))
def test_a_bad_change_is_rolled_back_within_five_ticks_and_rarer_each_time(seed: int) -> None:
    run = lied_to(seed)
    lying = run.of_phase(1)
    every_change = [tick.at for tick in lying if tick.verdict.reason is Reason.GAIN]
    rolled_back = [tick.at for tick in lying if tick.verdict.reason is Reason.ROLLBACK]
    assert len(rolled_back) >= 3
    # Of changes in a row the first counts: all are taken back together.
    changes = [next(at for at in every_change if at > before) for before in (0, *rolled_back[:-1])]
    assert all(0 < back - at <= ROLL_BACK_TICKS for at, back in zip(changes, rolled_back, strict=True))
    assert all(tick.k["code"] <= 3 for tick in lying if tick.at - 1 in rolled_back)
    pauses = [at - back for back, at in zip(rolled_back, changes[1:], strict=False)]
    assert pauses[0] >= FIRST_BACK_OFF_S
    assert all(later >= 1.9 * earlier for earlier, later in pairwise(pauses))


@pytest.mark.parametrize("seed", range(3))
def test_what_a_lie_costs_is_bounded(seed: int) -> None:
    run = lied_to(seed)
    assert {tick.best_k["code"] for tick in run.of_phase(1)} == {3}
    worst = min(tick.goodput / tick.best for tick in run.of_phase(1))
    assert worst < 0.75  # the change was bad indeed
    assert run.regret(1, settle_s=0) <= 0.05


@pytest.mark.parametrize("seed", range(3))
def test_k_returns_by_itself_when_the_plant_has_healed(seed: int) -> None:
    """Deep drafts are as good now as they were claimed to be; nobody tells the law but the counters."""
    run = lied_to(seed)
    last = max(tick.at for tick in run.of_phase(1) if tick.verdict.reason is Reason.ROLLBACK)
    healed = run.of_phase(2)
    back = next(tick.at for tick in healed if tick.k["code"] == 7)
    paused = [tick.at for tick in healed if tick.verdict.reason is Reason.BACK_OFF]
    assert back <= max(paused) + 2
    assert back - last <= 2 * FIRST_BACK_OFF_S * 2 ** sum(
        tick.verdict.reason is Reason.ROLLBACK for tick in run.of_phase(1)
    )
    assert all(tick.k["code"] == 7 for tick in healed if tick.at > back + 10)
    assert Reason.ROLLBACK not in {tick.verdict.reason for tick in healed}
