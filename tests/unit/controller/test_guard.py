import numpy as np
import pytest

from controller.guard import MEANING, Guard, LoadKind, Proposal, Reason, Standing
from controller.tuning import Tuning

ROWS = 4
N = np.array([1.0, 2.0, 4.0, 8.0])
HERE = LoadKind.of(2.0, ["code"])
ALL = np.ones(ROWS, dtype=bool)
ACTIVE = np.array([0.0, 1.0, 0.0, 0.0])


def standing(k: int = 3) -> Standing:
    return Standing(("default", "code"), np.full((ROWS, 2), k), N, ACTIVE)


def proposal(k: int, gain: float, rows: np.ndarray = ALL, *, is_present: bool = True) -> Proposal:
    return Proposal((1,), rows, np.full((ROWS, 2), k), np.full(ROWS, gain), is_present)


def gate(
    guard: Guard, found: list[Proposal], now: float = 100.0, at: Standing | None = None
) -> tuple[np.ndarray, Reason]:
    return guard.gate(at or standing(), found, minimum_gain_ratio=0.03, dwell_s=2.0, now=now)


def test_a_gain_below_the_minimum_changes_nothing() -> None:
    k, reason = gate(Guard(), [proposal(5, 0.029)])
    assert reason is Reason.MINIMUM_GAIN
    assert (k == 3).all()


def test_a_gain_changes_only_its_own_columns() -> None:
    k, reason = gate(Guard(), [proposal(5, 0.03)])
    assert reason is Reason.GAIN
    assert (k[:, 1] == 5).all()
    assert (k[:, 0] == 3).all()


def test_a_change_for_another_load_is_ahead() -> None:
    elsewhere = np.array([True, False, True, True])
    k, reason = gate(Guard(), [proposal(5, 0.5, elsewhere)])
    assert reason is Reason.AHEAD
    assert list(k[:, 1]) == [5, 3, 5, 5]
    assert gate(Guard(), [proposal(5, 0.5, is_present=False)])[1] is Reason.AHEAD


def test_a_small_gain_for_another_load_waits_for_a_change_that_traffic_uses() -> None:
    elsewhere = np.array([True, False, True, True])
    small = [proposal(5, 0.09, elsewhere), proposal(5, 0.09, is_present=False)]
    assert gate(Guard(), small)[1] is Reason.OPTIMAL
    k, reason = gate(Guard(), [proposal(5, 0.09, elsewhere), proposal(4, 0.03, ~elsewhere)])
    assert reason is Reason.GAIN
    assert list(k[:, 1]) == [5, 4, 5, 5]
    one_is_large = Proposal((1,), elsewhere, np.full((ROWS, 2), 5), np.array([0.1, 0.5, 0.09, 0.02]))
    k, reason = gate(Guard(), [one_is_large])
    assert reason is Reason.AHEAD
    assert list(k[:, 1]) == [5, 3, 5, 3]


def test_a_schedule_of_another_controller_dwells_from_the_take_over_on() -> None:
    elsewhere = [proposal(5, 0.5, is_present=False)]
    here = [proposal(5, 0.05)]
    for found, held in ((elsewhere, Reason.OPTIMAL), (here, Reason.DWELL)):
        assert gate(Guard(since=100.0), found, now=101.9)[1] is held
        assert gate(Guard(since=100.0), found, now=102.0)[1] in {Reason.AHEAD, Reason.GAIN}


def test_dwell_holds_a_second_change() -> None:
    guard = Guard()
    k, _ = gate(guard, [proposal(5, 0.5)], now=100.0)
    now = Standing(("default", "code"), k, N, ACTIVE)
    assert gate(guard, [proposal(1, 0.05)], now=101.9, at=now)[1] is Reason.DWELL
    assert gate(guard, [proposal(1, 0.05)], now=102.0, at=now)[1] is Reason.GAIN


def test_a_large_gain_does_not_wait_for_the_dwell() -> None:
    guard = Guard()
    k, _ = gate(guard, [proposal(5, 0.5)], now=100.0)
    assert gate(guard, [proposal(1, 0.1)], now=100.5, at=Standing(("default", "code"), k, N, ACTIVE))[1] is Reason.GAIN


def test_the_same_schedule_is_optimal() -> None:
    assert gate(Guard(), [proposal(3, 0.0)])[1] is Reason.OPTIMAL


def test_without_guard_everything_passes() -> None:
    guard = Guard(Tuning(guard=False))
    gate(guard, [proposal(5, 0.001)], now=100.0)
    assert gate(guard, [proposal(1, 0.001)], now=100.1)[1] is Reason.GAIN


def change(guard: Guard, at: float = 100.0) -> None:
    for second in range(10):
        assert guard.compare(HERE, 1000.0, 1000.0, None, at - 100.0 + second) is None
    assert gate(guard, [proposal(5, 0.5)], now=at)[1] is Reason.GAIN


def test_a_shortfall_rolls_back_and_pauses_longer_each_time() -> None:
    guard = Guard()
    for began, pause in ((100.0, 10.0), (200.0, 20.0)):
        change(guard, began)
        found = [guard.compare(HERE, 800.0, 1500.0, 1000.0, began + tick) for tick in range(5)]
        back = next(item for item in found if item is not None)
        assert (back == 3).all()
        at = began + next(index for index, item in enumerate(found) if item is not None)
        assert guard.paused(N, at + pause - 0.1).any()
        assert not guard.paused(N, at + pause).any()


def rolled_back() -> Guard:
    """Return a guard that has just, at 103 s, rolled a change back that was measured at two running decodes."""
    guard = Guard()
    change(guard)
    assert any(guard.compare(HERE, 800.0, 1500.0, 1000.0, 100.0 + tick) is not None for tick in range(4))
    return guard


def test_a_roll_back_pauses_the_loads_that_it_was_measured_at_and_no_others() -> None:
    assert list(rolled_back().paused(N, 105.0)) == [True, True, True, False]
    k, reason = gate(rolled_back(), [proposal(5, 0.5, N < 8.0)], now=105.0)
    assert reason is Reason.BACK_OFF
    assert list(k[:, 1]) == [3, 3, 3, 3]
    busy = Standing(("default", "code"), np.full((ROWS, 2), 3), N, ACTIVE[[0, 2, 3, 1]])
    k, reason = gate(rolled_back(), [proposal(5, 0.5)], now=105.0, at=busy)
    assert reason is Reason.GAIN
    assert list(k[:, 1]) == [3, 3, 3, 5]


ELSEWHERE = [LoadKind.of(30.0, ["code"]), LoadKind.of(2.0, ["code", "json"])]


@pytest.mark.parametrize("there", ELSEWHERE)
def test_what_the_model_is_off_by_at_another_load_is_no_shortfall(there: LoadKind) -> None:
    guard = Guard()
    change(guard)
    assert [guard.compare(there, 850.0, 1500.0, 1000.0, 101.0 + tick) for tick in range(6)] == [None] * 6
    assert guard.previous is None


@pytest.mark.parametrize("there", ELSEWHERE)
def test_a_large_shortfall_is_one_at_any_load(there: LoadKind) -> None:
    guard = Guard()
    change(guard)
    assert any(guard.compare(there, 750.0, 1500.0, 1000.0, 101.0 + tick) is not None for tick in range(6))


def test_what_the_model_was_off_by_long_ago_is_no_shortfall() -> None:
    guard = Guard()
    change(guard)
    assert [guard.compare(HERE, 850.0, 1500.0, 1000.0, 240.0 + tick) for tick in range(6)] == [None] * 6


def test_two_bad_changes_in_a_row_are_taken_back_together() -> None:
    guard = Guard()
    change(guard)
    assert guard.compare(HERE, 990.0, 1500.0, 1000.0, 101.0) is None
    assert gate(guard, [proposal(7, 0.5)], now=103.0, at=standing(5))[1] is Reason.GAIN
    found = [guard.compare(HERE, 800.0, 1500.0, 1000.0, 104.0 + tick) for tick in range(5)]
    back = next(item for item in found if item is not None)
    assert (back == 3).all()


def test_a_bad_change_does_not_hide_behind_a_good_one_before_it() -> None:
    guard = Guard()
    change(guard)
    assert [guard.compare(HERE, 1200.0, 1500.0, 1000.0, 101.0 + tick) for tick in range(5)] == [None] * 5
    assert gate(guard, [proposal(7, 0.5)], now=107.0, at=standing(5))[1] is Reason.GAIN
    found = [guard.compare(HERE, 800.0, 1500.0, 1000.0, 108.0 + tick) for tick in range(6)]
    back = next(item for item in found if item is not None)
    assert (back == 3).all()


def test_a_change_that_delivers_stays_though_the_prediction_was_too_high() -> None:
    guard = Guard()
    change(guard)
    assert [guard.compare(HERE, 1100.0, 1500.0, 1000.0, 101.0 + tick) for tick in range(8)] == [None] * 8
    assert guard.previous is None
    assert not guard.paused(N, 110.0).any()


def test_a_neighbour_that_makes_some_ticks_three_times_as_long_rolls_nothing_back() -> None:
    guard = Guard()
    change(guard)
    noisy = [600.0, 1010.0, 480.0, 990.0, 1050.0, 520.0, 1000.0, 1020.0]
    assert [guard.compare(HERE, measured, 1500.0, 1000.0, 101.0 + tick) for tick, measured in enumerate(noisy)] == [
        None
    ] * 8


def test_a_shortfall_in_doubt_is_watched_until_it_is_sure() -> None:
    guard = Guard()
    change(guard)
    for tick, measured in enumerate([700.0, 1000.0, 720.0, 990.0, 700.0]):
        assert guard.compare(HERE, measured, 1500.0, 1000.0, 101.0 + tick) is None
    found = [guard.compare(HERE, 720.0, 1500.0, 1000.0, 106.0 + tick) for tick in range(10)]
    assert any(item is not None for item in found)


def test_less_traffic_is_not_a_shortfall() -> None:
    """Half the load halves the goodput, but also what the previous schedule would yield."""
    guard = Guard()
    change(guard)
    assert [guard.compare(HERE, 520.0, 700.0, 500.0, 101.0 + tick) for tick in range(8)] == [None] * 8


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_a_meaning(reason: Reason) -> None:
    assert MEANING[reason]
