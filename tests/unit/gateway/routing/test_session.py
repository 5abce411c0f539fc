"""Properties of a session's home: agreement, bounded load, minimal disruption, even shares."""

import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specpilot.gateway.routing.balance import bound, usable
from specpilot.gateway.routing.session import hash_of, home, session_of
from tests.support.candidates import One, fleet, fleets

NAMES = st.text(min_size=1, max_size=40)
IDLE = float("inf")


def home_of(session: str, engines: list[One]) -> str:
    best, busy = usable(engines, 1.0)
    return home(session, best, busy, IDLE)[0].engine_id


@given(NAMES, st.permutations(fleet(6)))
def test_the_order_in_which_engines_are_known_does_not_matter(session: str, engines: list[One]) -> None:
    assert home_of(session, engines) == home_of(session, fleet(6))


def test_another_process_agrees() -> None:
    sessions = [f"s{at}" for at in range(50)]
    code = (
        "from tests.unit.gateway.routing.test_session import home_of; from tests.support.candidates import fleet;"
        f"print([home_of(name, fleet(7)) for name in {sessions!r}])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == repr([home_of(name, fleet(7)) for name in sessions])


@given(NAMES, st.integers(1, 8), st.integers(0, 7))
def test_an_engine_that_leaves_or_joins_moves_only_its_own_sessions(session: str, count: int, leaver: int) -> None:
    engines = fleet(count + 1)
    gone = engines[leaver % len(engines)]
    before = home_of(session, engines)
    after = home_of(session, [engine for engine in engines if engine is not gone])
    assert before in (after, gone.engine_id)


@given(NAMES, fleets(least=1))
def test_the_bound_holds_and_the_home_is_passed_over_only_for_it(session: str, engines: list[One]) -> None:
    best, busy = usable(engines, 1.0)
    if not best:
        return
    limit = bound(busy)
    chosen, is_home = home(session, best, busy, limit)
    assert not chosen.is_draining
    assert busy[best.index(chosen)] <= limit
    first = home(session, best, busy, IDLE)[0]
    assert is_home == (chosen is first)
    assert is_home or busy[best.index(first)] > limit


@given(NAMES, st.integers(2, 6))
def test_the_next_home_is_the_one_it_would_have_without_the_busy_one(session: str, count: int) -> None:
    engines = fleet(count)
    first = home_of(session, engines)
    for engine in engines:
        engine.work_tokens = 1e6 if engine.engine_id == first else 0.0
    best, busy = usable(engines, 1.0)
    chosen, is_home = home(session, best, busy, bound(busy))
    assert not is_home
    assert chosen.engine_id == home_of(session, [engine for engine in engines if engine.engine_id != first])


@pytest.mark.parametrize("count", [2, 3, 5, 8])
def test_shares_are_even(count: int) -> None:
    sessions = 4000
    shares = Counter(home_of(f"session-{at}", fleet(count)) for at in range(sessions))
    assert len(shares) == count
    for share in shares.values():
        assert share == pytest.approx(sessions / count, rel=0.15)


@given(NAMES)
def test_a_hash_is_odd_and_of_64_bits(name: str) -> None:
    assert hash_of(name) % 2 == 1
    assert 0 < hash_of(name) < 2**64


def test_names_that_are_no_text_at_all_have_a_hash() -> None:
    assert hash_of("\ud800") != hash_of("\ud801")


ALL = {"prompt_cache_key": "k", "metadata": {"session_id": "s", "user_id": "u"}, "user": "me"}


@pytest.mark.parametrize(
    ("header", "body", "name"),
    [
        ("h", ALL, "h"),
        (None, ALL, "k"),
        ("", ALL, "k"),
        (None, {**ALL, "prompt_cache_key": ""}, "s"),
        (None, {"metadata": {"user_id": "u"}, "user": "me"}, "u"),
        (None, {"metadata": ["session_id"], "user": "me"}, "me"),
        (None, {"metadata": {"session_id": 7}, "prompt_cache_key": ["k"], "user": {"id": "me"}}, None),
        (None, {"metadata": None, "user": ""}, None),
        (None, {}, None),
    ],
)
def test_who_names_the_session(header: str | None, body: dict[str, object], name: str | None) -> None:
    assert session_of(header, body) == name
