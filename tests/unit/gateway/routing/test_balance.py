import pytest
from hypothesis import given
from hypothesis import strategies as st

from specpilot.gateway.routing.balance import bound, least, two_choices, usable
from specpilot.gateway.routing.outlier_detection import (
    EJECTED_MAX_S,
    EJECTED_MIN_S,
    FAILURES_ALLOWED,
    RAMP_FLOOR,
    RAMP_S,
    OutlierDetection,
)
from specpilot.gateway.routing.retry_budget import SAVED_S, RetryBudget
from tests.support.candidates import One, ejected, fleet, fleets


def choose(engines: list[One], now: float, turn: int = 0) -> One | None:
    best, busy = usable(engines, now)
    return least(best, busy, turn) if best else None


def test_equals_take_turns() -> None:
    engines = [One(), One(), One()]
    assert {id(choose(engines, 0.0, turn)) for turn in range(3)} == {id(engine) for engine in engines}


@given(fleets(), st.integers(0, 2**64), st.booleans())
def test_no_engine_of_a_worse_rank_is_chosen(engines: list[One], draw: int, is_least: bool) -> None:
    best, busy = usable(engines, 1.0)
    candidates = [engine for engine in engines if not engine.is_draining]
    assert bool(best) == bool(candidates)
    if not best:
        return
    chosen = least(best, busy, draw) if is_least else two_choices(best, busy, draw)
    assert not chosen.is_draining
    for other in candidates:
        assert chosen.outlier_detection.is_ejected <= other.outlier_detection.is_ejected
        if chosen.outlier_detection.is_ejected == other.outlier_detection.is_ejected and other.work_tokens is not None:
            assert chosen.work_tokens is not None
            if is_least:
                assert chosen.work_tokens <= other.work_tokens


@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=6), st.integers(0, 2**64))
def test_of_two_choices_the_busiest_of_all_is_never_taken(loads: list[int], draw: int) -> None:
    engines = [One(load) for load in loads]
    chosen = two_choices(*usable(engines, 0.0), draw)
    assert chosen.work_tokens is not None
    assert chosen.work_tokens < max(loads) or loads.count(max(loads)) > 1


@pytest.mark.parametrize("count", [2, 3, 5])
def test_two_choices_draws_every_pair_alike(count: int) -> None:
    engines = fleet(count)
    for at, engine in enumerate(engines):
        engine.work_tokens = 100.0 * at
    chosen = [int(two_choices(*usable(engines, 0.0), draw).work_tokens or 0) // 100 for draw in range(count * 20)]
    pairs = count * (count - 1) // 2
    for at in range(count):  # of all pairs, engine `at` is the less busy of those with a later one
        assert chosen.count(at) / len(chosen) == pytest.approx((count - 1 - at) / pairs, abs=0.5 / pairs)


def test_a_preferred_engine_may_be_half_as_busy_again_and_a_few_requests_more() -> None:
    assert bound([20_000.0, 10_000.0]) == 15_000.0 + 8192.0


def test_a_failed_connection_ejects_at_once_and_the_time_doubles() -> None:
    outlier_detection, now, times = OutlierDetection(), 100.0, []
    for _ in range(12):
        assert outlier_detection.fail(now, is_connect=True)
        times.append(outlier_detection.ejected_until - now)
        now = outlier_detection.ejected_until
    assert times[:3] == [EJECTED_MIN_S, 2 * EJECTED_MIN_S, 4 * EJECTED_MIN_S]
    assert times[-1] == EJECTED_MAX_S


def test_failures_while_ejected_do_not_prolong_it() -> None:
    outlier_detection = ejected(10.0)
    until = outlier_detection.ejected_until
    outlier_detection.fail(10.1, is_connect=True)
    assert outlier_detection.ejected_until == until


def test_a_time_out_of_a_silent_engine_ejects_at_once_and_for_long() -> None:
    outlier_detection = OutlierDetection()
    outlier_detection.time_out(1.0)
    assert outlier_detection.ejected_until == 1.0 + EJECTED_MAX_S
    outlier_detection.begin_answer(2.0)
    assert outlier_detection.is_ejected


def test_an_engine_returns_slowly() -> None:
    outlier_detection = ejected()
    outlier_detection.restore(50.0)
    assert outlier_detection.share(50.0) == RAMP_FLOOR
    assert RAMP_FLOOR < outlier_detection.share(50.0 + RAMP_S / 2) < 1.0
    assert outlier_detection.share(50.0 + RAMP_S) == 1.0
    old, new = One(100.0), One(20.0, outlier_detection=outlier_detection)
    assert choose([old, new], 50.0) is old
    assert choose([old, new], 50.0 + RAMP_S) is new


def test_an_engine_that_was_never_out_carries_its_full_share() -> None:
    outlier_detection = OutlierDetection()
    outlier_detection.restore(5.0)
    assert outlier_detection.share(5.0) == 1.0


def test_a_long_good_time_is_a_fresh_start() -> None:
    outlier_detection = OutlierDetection()
    for now in (0.0, 1.0, 3.0):
        outlier_detection.eject(now)
    outlier_detection.restore(8.0)
    outlier_detection.eject(8.0 + RAMP_S + 1)
    assert outlier_detection.ejected_until == 8.0 + RAMP_S + 1 + EJECTED_MIN_S


def test_the_budget_is_a_share_of_requests() -> None:
    budget = RetryBudget(ratio=0.1, floor_per_s=0.0, burst=10.0)
    assert sum(budget.spend(0.0) for _ in range(100)) == 10
    for _ in range(55):
        budget.earn(0.0)
    assert sum(budget.spend(0.0) for _ in range(100)) == 5


def test_what_the_requests_of_the_last_minute_earned_is_saved_up() -> None:
    budget = RetryBudget(ratio=0.1, floor_per_s=0.0, burst=10.0)
    for at in range(100_000):
        budget.earn(at / 100)
    saved = [budget.spend(1000.0) for _ in range(2000)]
    assert sum(saved) == pytest.approx(10 + 0.1 * 100 * SAVED_S, rel=0.01)
    assert saved == sorted(saved, reverse=True)


def test_what_requests_of_long_ago_earned_is_gone() -> None:
    budget = RetryBudget(ratio=0.1, floor_per_s=0.0, burst=10.0)
    for _ in range(1000):
        budget.earn(0.0)
    assert sum(budget.spend(20 * SAVED_S) for _ in range(200)) == 10


def test_the_budget_has_a_floor() -> None:
    budget = RetryBudget(ratio=0.0, floor_per_s=1.0, burst=10.0)
    assert sum(budget.spend(0.0) for _ in range(100)) == 10
    assert sum(budget.spend(3.5) for _ in range(100)) == 3
    assert sum(budget.spend(1000.0) for _ in range(100)) == 10
    assert not budget.spend(0.0)  # a clock that goes backwards gives nothing


@given(st.lists(st.booleans(), max_size=300))
def test_retries_never_exceed_the_share_and_the_burst(steps: list[bool]) -> None:
    budget = RetryBudget(ratio=0.1, floor_per_s=0.0, burst=10.0)
    requests = retries = 0
    for is_request in steps:
        if is_request:
            budget.earn(0.0)
            requests += 1
        else:
            retries += budget.spend(0.0)
    assert retries <= 10 + 0.1 * requests + 1e-6


def test_only_a_probe_or_an_answer_after_its_time_ends_an_ejection() -> None:
    """An answer that begins earlier was asked for before: an engine whose streams all break would never stay away."""
    outlier_detection = OutlierDetection()
    for _ in range(FAILURES_ALLOWED):
        outlier_detection.fail_stream(10.0)
    until = outlier_detection.ejected_until
    outlier_detection.failures = 2
    outlier_detection.begin_answer(until - 0.1)
    assert outlier_detection.is_ejected
    assert (outlier_detection.failures, outlier_detection.stream_failures) == (0, FAILURES_ALLOWED)
    outlier_detection.begin_answer(until)
    assert not outlier_detection.is_ejected
    assert outlier_detection.share(until) == RAMP_FLOOR
