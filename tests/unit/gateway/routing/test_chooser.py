"""The whole choice as one pure function of engines, request and memory."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specpilot.gateway.routing.balance import bound, usable
from specpilot.gateway.routing.chooser import Affinity, Balance, Chooser, Rule
from specpilot.gateway.routing.outlier_detection import OutlierDetection
from tests.support.candidates import One, chat, ejected, facts, fleet, fleets

SYSTEM = "You are a careful assistant. " * 80


def chooser(affinity: Affinity = Affinity.BOTH, balance: Balance = Balance.LEAST) -> Chooser:
    return Chooser(balance, affinity, lambda: Random(1).getrandbits(64))  # always the same draw


def used(found: Chooser) -> dict[str, int]:
    return {rule: count for rule, count in found.counts.items() if count}


def name_of(engine: One | None) -> str:
    assert engine is not None
    return engine.engine_id


@given(
    fleets(),
    st.lists(st.tuples(st.sampled_from([None, "s1", "s2"]), st.sampled_from("ab")), min_size=1, max_size=8),
    st.sampled_from(Affinity),
    st.sampled_from(Balance),
    st.data(),
)
def test_whatever_is_preferred_rank_and_bound_hold(
    engines: list[One],
    requests: list[tuple[str | None, str]],
    affinity: Affinity,
    balance: Balance,
    data: st.DataObject,
) -> None:
    found = Chooser(balance, affinity, lambda: data.draw(st.integers(0, 2**64)))
    best, busy = usable(engines, 1.0)
    for count, (session, letter) in enumerate(requests, 1):
        before = {**found.counts}
        chosen = found.choose(engines, chat(SYSTEM, letter * 2000), session, 1.0)
        if chosen is None:
            assert not best
            return
        assert chosen in best
        assert not chosen.is_draining
        assert sum(found.counts.values()) == count
        [rule] = [rule for rule in Rule if found.counts[rule] != before[rule]]
        if rule in (Rule.SESSION, Rule.SESSION_SPILLED, Rule.PREFIX) or balance is Balance.LEAST:
            assert busy[best.index(chosen)] <= bound(busy)


def test_a_session_stays_though_others_are_idle_and_leaves_when_its_home_is_much_busier() -> None:
    found, engines = chooser(), fleet(4)
    home = found.choose(engines, facts(), "s", 0.0)
    assert home is not None
    home.work_tokens = 8000.0
    assert found.choose(engines, facts(), "s", 0.0) is home
    home.work_tokens = 9000.0
    other = found.choose(engines, facts(), "s", 0.0)
    assert other is not home
    for engine in engines:
        engine.work_tokens = 9000.0
    assert found.choose(engines, facts(), "s", 0.0) is home
    assert used(found) == {Rule.SESSION: 3, Rule.SESSION_SPILLED: 1}


def test_a_session_whose_home_is_to_be_avoided_is_spilled() -> None:
    found, engines = chooser(), fleet(4)
    home = found.choose(engines, facts(), "s", 0.0)
    assert home is not None
    full = [home]
    other = found.choose(engines, facts(), "s", 0.0, full)
    assert other is found.choose([engine for engine in engines if engine is not home], facts(), "s", 0.0)
    assert used(found) == {Rule.SESSION: 2, Rule.SESSION_SPILLED: 1}  # an engine that is not there is nobody's home
    home.outlier_detection = ejected()
    assert found.choose(engines, facts(), "s", 0.0, full) is other
    home.outlier_detection, home.is_draining = OutlierDetection(), True
    assert found.choose(engines, facts(), "s", 0.0, full) is other
    assert used(found) == {Rule.SESSION: 4, Rule.SESSION_SPILLED: 1}  # nor is one that takes nothing
    assert found.choose([home], facts(), "s", 0.0, full) is None


def test_a_beginning_whose_engine_is_to_be_avoided_is_spilled_and_then_known_elsewhere() -> None:
    found, engines = chooser(), fleet(3)
    first = found.choose(engines, chat(SYSTEM), None, 0.0)
    assert first is not None
    other = found.choose(engines, chat(SYSTEM), None, 0.0, [first])
    assert other is not first
    assert found.choose(engines, chat(SYSTEM), None, 0.0, [first]) is other
    assert used(found) == {Rule.BALANCED: 1, Rule.PREFIX_SPILLED: 1, Rule.PREFIX: 1}


@pytest.mark.parametrize("balance", Balance)
def test_what_is_to_be_avoided_is_not_balanced_to_though_nothing_is_busier(balance: Balance) -> None:
    found, engines = chooser(balance=balance), fleet(3)
    engines[2].work_tokens = None
    for avoided in (engines[:2], engines[:1], engines[1:]):
        assert found.choose(engines, facts(), None, 0.0, avoided) not in avoided
    assert found.choose(engines, facts(), "s", 0.0, engines[:2]) is engines[2]


def test_a_session_outlives_its_ejected_home_and_returns_to_it() -> None:
    found, engines = chooser(), fleet(4)
    home = found.choose(engines, facts(), "s", 0.0)
    assert home is not None
    home.outlier_detection = ejected()
    assert found.choose(engines, facts(), "s", 0.0) is not home
    home.outlier_detection.restore(10.0)
    home.work_tokens = 2000.0  # as much as 20,000 on an engine that just returned
    assert found.choose(engines, facts(), "s", 10.0) is not home
    assert found.choose(engines, facts(), "s", 30.0) is home


def test_a_conversation_returns_to_the_engine_that_has_it() -> None:
    found, engines = chooser(), fleet(4)
    first = found.choose(engines, chat(SYSTEM, "question"), None, 0.0)
    assert first is not None
    first.work_tokens = 5000.0
    assert found.choose(engines, chat(SYSTEM, "question", "answer", "next"), None, 0.0) is first
    assert found.choose(engines, chat(SYSTEM, "another question"), None, 0.0) is first
    assert found.choose(engines, chat("x" * 3000, "question"), None, 0.0) is not first
    assert used(found) == {Rule.PREFIX: 2, Rule.BALANCED: 2}


def test_the_longest_beginning_wins() -> None:
    found, engines = chooser(), fleet(3)
    home = {}
    for engine, topic in zip(engines, ("a", "b"), strict=False):
        for other in engines:
            other.work_tokens = 0.0 if other is engine else 1e6
        home[topic] = found.choose(engines, chat(SYSTEM, topic * 2000), None, 0.0)
        assert home[topic] is engine
    for engine in engines:
        engine.work_tokens = 0.0
    for topic in ("a", "b", "a"):
        assert found.choose(engines, chat(SYSTEM, topic * 2000, "answer", "next"), None, 0.0) is home[topic]


def test_of_those_that_have_it_the_least_busy() -> None:
    found, engines = chooser(), fleet(3)
    for engine in engines[:2]:
        for other in engines:
            other.work_tokens = 0.0 if other is engine else 1e6
        found.choose(engines, chat(SYSTEM), None, 0.0)
    for engine, work in zip(engines, (200.0, 100.0, 0.0), strict=True):
        engine.work_tokens = work
    assert found.choose(engines, chat(SYSTEM, "new"), None, 0.0) is engines[1]


def test_a_hot_beginning_spreads_until_all_are_about_as_busy() -> None:
    found, engines = chooser(), fleet(3)
    for at in range(200):
        chosen = found.choose(engines, chat(SYSTEM, f"question {at}"), None, 0.0)
        assert chosen is not None
        assert chosen.work_tokens is not None
        chosen.work_tokens += 500.0
        assert chosen.work_tokens <= 500.0 + bound(usable(engines, 0.0)[1])
    loads = [engine.work_tokens or 0.0 for engine in engines]
    assert max(loads) <= 1.5 * min(loads) + 8192 + 500
    assert found.counts[Rule.PREFIX_SPILLED] <= 4  # the memory learns of each engine once
    assert found.counts[Rule.PREFIX] >= 195


def test_a_beginning_whose_engine_left_is_as_good_as_unknown() -> None:
    found, engines = chooser(), fleet(3)
    first = found.choose(engines, chat(SYSTEM), None, 0.0)
    rest = [engine for engine in engines if engine is not first]
    second = found.choose(rest, chat(SYSTEM), None, 0.0)
    assert second in rest
    assert found.choose(rest, chat(SYSTEM), None, 0.0) is second
    assert used(found) == {Rule.BALANCED: 2, Rule.PREFIX: 1}


def test_a_session_comes_before_the_prompt() -> None:
    found, engines = chooser(), fleet(5)
    by_prompt = found.choose(engines, chat(SYSTEM), None, 0.0)
    homes = {name_of(found.choose(engines, chat(SYSTEM), f"s{at}", 0.0)) for at in range(50)}
    assert homes == {engine.engine_id for engine in engines}
    assert found.choose(engines, chat(SYSTEM), None, 0.0) is by_prompt


@pytest.mark.parametrize(
    ("affinity", "rules"),
    [
        (Affinity.NONE, {Rule.BALANCED: 3}),
        (Affinity.SESSION, {Rule.SESSION: 1, Rule.BALANCED: 2}),
        (Affinity.PREFIX, {Rule.BALANCED: 1, Rule.PREFIX: 2}),
        (Affinity.BOTH, {Rule.SESSION: 1, Rule.BALANCED: 1, Rule.PREFIX: 1}),
    ],
)
def test_what_is_off_is_not_looked_at(affinity: Affinity, rules: dict[Rule, int]) -> None:
    found = chooser(affinity)
    for session in (None, None, "s"):
        found.choose(fleet(3), chat(SYSTEM), session, 0.0)
    assert used(found) == rules
    assert (len(found.prefixes) > 0) == (affinity in (Affinity.PREFIX, Affinity.BOTH))


def test_balance_is_for_requests_that_prefer_nothing() -> None:
    engines, random = fleet(4), Random(3)
    found = Chooser(Balance.TWO_CHOICES, Affinity.BOTH, lambda: random.getrandbits(64))
    taken = Counter(name_of(found.choose(engines, chat("hi"), None, 0.0)) for _ in range(400))
    assert len(taken) == 4
    engines[0].work_tokens = 1e6
    assert engines[0] not in [found.choose(engines, chat("hi"), None, 0.0) for _ in range(200)]
    assert used(found) == {Rule.BALANCED: 600}
