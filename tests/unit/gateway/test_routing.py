from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from gateway.routing import (
    EJECTED_MAX_S,
    EJECTED_MIN_S,
    FAILURES_ALLOWED,
    RAMP_FLOOR,
    RAMP_S,
    RetryBudget,
    Standing,
    choose,
)


@dataclass
class One:
    work_tokens: float | None = 0.0
    is_draining: bool = False
    standing: Standing = field(default_factory=Standing)


def ejected(now: float = 0.0) -> Standing:
    standing = Standing()
    standing.eject(now)
    return standing


def test_the_least_work_wins() -> None:
    idle, busy = One(10.0), One(500.0)
    assert choose([busy, idle], 0.0) is idle


def test_equals_take_turns() -> None:
    engines = [One(), One(), One()]
    assert {id(choose(engines, 0.0, turn)) for turn in range(3)} == {id(engine) for engine in engines}


def test_a_draining_engine_gets_nothing() -> None:
    assert choose([One(0.0, is_draining=True)], 0.0) is None
    busy = One(9e9)
    assert choose([One(0.0, is_draining=True), busy], 0.0) is busy
    assert choose([], 0.0) is None


def test_unknown_load_is_last_but_before_the_ejected() -> None:
    unknown, busy, out = One(None), One(9e9), One(0.0, standing=ejected())
    assert choose([out, unknown, busy], 0.0) is busy
    assert choose([out, unknown], 0.0) is unknown
    assert choose([out], 0.0) is out


@given(
    st.lists(st.tuples(st.none() | st.floats(0, 1e6), st.booleans(), st.booleans()), max_size=6), st.integers(0, 100)
)
def test_the_choice_is_never_worse_than_another(found: list[tuple[float | None, bool, bool]], turn: int) -> None:
    engines = [
        One(work, is_draining, ejected() if is_ejected else Standing()) for work, is_draining, is_ejected in found
    ]
    chosen = choose(engines, 1.0, turn)
    usable = [engine for engine in engines if not engine.is_draining]
    assert (chosen is None) == (not usable)
    if chosen is None:
        return
    for other in usable:
        assert chosen.standing.is_ejected <= other.standing.is_ejected
        if chosen.standing.is_ejected == other.standing.is_ejected and other.work_tokens is not None:
            assert chosen.work_tokens is not None
            assert chosen.work_tokens <= other.work_tokens


def test_a_failed_connection_ejects_at_once_and_the_time_doubles() -> None:
    standing, now, times = Standing(), 100.0, []
    for _ in range(12):
        assert standing.fail(now, is_connect=True)
        times.append(standing.ejected_until - now)
        now = standing.ejected_until
    assert times[:3] == [EJECTED_MIN_S, 2 * EJECTED_MIN_S, 4 * EJECTED_MIN_S]
    assert times[-1] == EJECTED_MAX_S


def test_failures_while_ejected_do_not_prolong_it() -> None:
    standing = ejected(10.0)
    until = standing.ejected_until
    standing.fail(10.1, is_connect=True)
    assert standing.ejected_until == until


def test_other_failures_eject_after_some_in_a_row() -> None:
    standing = Standing()
    for _ in range(FAILURES_ALLOWED - 1):
        assert not standing.fail(0.0, is_connect=False)
    standing.succeed()
    for _ in range(FAILURES_ALLOWED - 1):
        assert not standing.fail(0.0, is_connect=False)
    assert standing.fail(0.0, is_connect=False)


def test_an_engine_returns_slowly() -> None:
    standing = ejected()
    standing.restore(50.0)
    assert standing.share(50.0) == RAMP_FLOOR
    assert RAMP_FLOOR < standing.share(50.0 + RAMP_S / 2) < 1.0
    assert standing.share(50.0 + RAMP_S) == 1.0
    old, new = One(100.0), One(20.0, standing=standing)
    assert choose([old, new], 50.0) is old
    assert choose([old, new], 50.0 + RAMP_S) is new


def test_an_engine_that_was_never_out_carries_its_full_share() -> None:
    standing = Standing()
    standing.restore(5.0)
    assert standing.share(5.0) == 1.0


def test_a_long_good_time_is_a_fresh_start() -> None:
    standing = Standing()
    for now in (0.0, 1.0, 3.0):
        standing.eject(now)
    standing.restore(8.0)
    standing.eject(8.0 + RAMP_S + 1)
    assert standing.ejected_until == 8.0 + RAMP_S + 1 + EJECTED_MIN_S


def test_the_budget_is_a_share_of_requests() -> None:
    budget = RetryBudget(ratio=0.1, floor_per_s=0.0, burst=10.0)
    assert sum(budget.spend(0.0) for _ in range(100)) == 10
    for _ in range(55):
        budget.earn()
    assert sum(budget.spend(0.0) for _ in range(100)) == 5


def test_the_budget_has_a_floor() -> None:
    budget = RetryBudget(ratio=0.0, floor_per_s=1.0, burst=10.0)
    assert sum(budget.spend(0.0) for _ in range(100)) == 10
    assert sum(budget.spend(3.5) for _ in range(100)) == 3
    assert sum(budget.spend(1000.0) for _ in range(100)) == 10
    assert not budget.spend(0.0)  # a clock that steps back gives nothing


@given(st.lists(st.booleans(), max_size=300))
def test_retries_never_exceed_the_share_and_the_burst(steps: list[bool]) -> None:
    budget = RetryBudget(ratio=0.1, floor_per_s=0.0, burst=10.0)
    requests = retries = 0
    for is_request in steps:
        if is_request:
            budget.earn()
            requests += 1
        else:
            retries += budget.spend(0.0)
    assert retries <= 10 + 0.1 * requests + 1e-6
