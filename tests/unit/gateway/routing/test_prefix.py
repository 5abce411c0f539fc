"""The points of a prompt, and the bounded memory of who has them."""

import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specpilot.gateway.routing.prefix import (
    BLOCK_CHARS,
    HOLDERS_MAX,
    LEAST_CHARS,
    PREFIXES_MAX,
    READ_CHARS,
    TEXTS_MAX,
    Prefixes,
    points_of,
)
from tests.support.candidates import chat, facts

SYSTEM = "You are a careful assistant. " * 80
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["content", "text", "url", "image_url", "x"]), inner, max_size=3)
    ),
    max_leaves=20,
)


@given(st.lists(st.text(max_size=1500), min_size=1, max_size=6), st.lists(st.text(max_size=1500), max_size=4))
def test_the_next_turn_begins_with_all_points_of_the_last(turn: list[str], added: list[str]) -> None:
    points = points_of(chat(*turn))
    assert points_of(chat(*turn, *added))[: len(points)] == points


@given(st.lists(st.text(min_size=1, max_size=1500), min_size=1, max_size=4), st.integers(0, 3), st.integers(0))
def test_from_a_difference_on_no_point_is_shared(turn: list[str], which: int, where: int) -> None:
    which %= len(turn)
    text = turn[which]
    where %= len(text)
    other = [*turn]
    other[which] = text[:where] + chr(ord(text[where]) ^ 1) + text[where + 1 :]
    mine, theirs = points_of(chat(*turn)), points_of(chat(*other))
    before = sum(map(len, turn[:which])) + where
    shared = [point for point in mine if point in theirs]
    assert shared == mine[: len(shared)]
    assert len(shared) <= before // BLOCK_CHARS + which


def test_short_beginnings_count_for_nothing() -> None:
    assert points_of(chat("You are helpful.", "hi")) == []
    assert len(points_of(chat("s" * LEAST_CHARS))) == 1
    assert len(points_of(chat("s" * (LEAST_CHARS - 2), "ab", "c"))) == 2


@pytest.mark.parametrize("other", [{"model": "other"}, {"cache_salt": "tenant"}])
def test_what_shares_no_cache_shares_no_point(other: dict[str, str]) -> None:
    assert not set(points_of(chat(SYSTEM))) & set(points_of(chat(SYSTEM, **other)))


def test_conversations_under_a_long_system_prompt_are_told_apart() -> None:
    system = "s" * (5 * READ_CHARS)
    first, second = chat(system, "one " * 300), chat(system, "two " * 300)
    mine, theirs = points_of(first), points_of(second)
    assert mine[:-1] == theirs[:-1]
    assert mine[-1] != theirs[-1]
    assert points_of(chat(system, "one " * 300, "answer", "next"))[: len(mine)] == mine


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "system", "content": SYSTEM}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "text", "text": SYSTEM}]}]}),
        ("/v1/completions", {"prompt": SYSTEM}),
        ("/v1/completions", {"prompt": [SYSTEM, "another"]}),
        ("/v1/responses", {"input": SYSTEM}),
        ("/v1/responses", {"instructions": SYSTEM, "input": [{"role": "user", "content": "hi"}]}),
        ("/v1/messages", {"system": SYSTEM, "messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/messages", {"system": [{"type": "text", "text": SYSTEM}], "messages": []}),
    ],
)
def test_every_kind_of_prompt_has_points(path: str, body: dict[str, Any]) -> None:
    assert points_of(facts(body, path))[:2] == points_of(chat(SYSTEM))[:2]


def test_an_image_counts() -> None:
    def asked(data: str) -> list[int]:
        parts = [{"type": "image_url", "image_url": {"url": data}}, {"type": "text", "text": "what is it?"}]
        return points_of(facts({"messages": [{"role": "user", "content": parts}]}))

    assert asked("a" * 20_000) == asked("a" * 20_000)
    assert asked("a" * 20_000)[-1] != asked("a" * 19_999 + "b")[-1]


def test_what_is_embedded_is_not_remembered() -> None:
    assert points_of(facts({"input": SYSTEM}, "/v1/embeddings")) == []


@given(st.sampled_from(["messages", "prompt", "input", "system", "cache_salt"]), JSON)
def test_a_prompt_of_any_shape_is_taken(name: str, value: Any) -> None:
    points_of(facts({name: value}, "/v1/responses"))


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": "x" * 2000}] * 10_000},
        {"prompt": [0] * 100_000},
        {"messages": [{"content": [{"text": "y" * 900}] * 1000}] * 1000},
        {"prompt": "z" * 5_000_000},
    ],
)
def test_a_long_prompt_has_a_bounded_number_of_points(body: dict[str, Any]) -> None:
    assert len(points_of(facts(body))) <= READ_CHARS // BLOCK_CHARS + TEXTS_MAX


def test_the_latest_holders_are_known_first_and_no_more_than_some() -> None:
    prefixes = Prefixes()
    for at in range(HOLDERS_MAX + 2):
        prefixes.learn([1], f"e{at}")
    assert prefixes.holders(1) == tuple(f"e{at}" for at in reversed(range(2, HOLDERS_MAX + 2)))
    prefixes.learn([1], "e2")
    assert len(prefixes.holders(1)) == HOLDERS_MAX
    assert prefixes.holders(2) == ()


def test_the_point_that_was_not_used_for_longest_goes_first() -> None:
    prefixes = Prefixes(limit=3)
    for point in (1, 2, 3):
        prefixes.learn([point], "a")
    prefixes.learn([1], "a")
    prefixes.learn([4], "a")
    assert [bool(prefixes.holders(point)) for point in (1, 2, 3, 4)] == [True, False, True, True]


@given(st.lists(st.tuples(st.lists(st.integers(0, 30), max_size=8), st.sampled_from("abcdef")), max_size=60))
def test_the_memory_is_bounded_whatever_is_learnt(lessons: list[tuple[list[int], str]]) -> None:
    prefixes = Prefixes(limit=10)
    for points, engine_id in lessons:
        prefixes.learn(points, engine_id)
        assert len(prefixes) <= 10
        assert all(len(set(prefixes.holders(point))) <= HOLDERS_MAX for point in range(31))


def test_a_full_memory_takes_at_most_20_mb() -> None:
    names = [f"10.0.0.{at}:8000" for at in range(HOLDERS_MAX)]
    tracemalloc.start()
    try:
        prefixes = Prefixes()
        for at in range(PREFIXES_MAX + 1000):  # every point with as many holders as there may be, none shared
            for name in names:
                prefixes.learn([hash((at, "x"))], name)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(prefixes) == PREFIXES_MAX
    assert taken <= 20e6
