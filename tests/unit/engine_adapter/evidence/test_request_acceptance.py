import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specpilot.engine_adapter.evidence.request_acceptance import Acceptance, Kind, Starts, kind_of, trials
from specpilot.policy.bands import band_of


def kind(name: str = "chat", temperature: float = 0.0, *, is_structured: bool = False) -> Kind:
    return kind_of(name, temperature, is_structured=is_structured)


@given(st.floats(0, 1), st.lists(st.tuples(st.integers(1, 7), st.integers(0, 7)), max_size=50))
def test_the_estimate_is_the_weighted_share_of_accepted_trials(begin: float, drafts: list[tuple[int, int]]) -> None:
    own, accepts, tried = Acceptance(begin), 3 * begin, 3.0
    for k, hits in drafts:
        accepted = min(k, hits)
        own.note(accepted, trials(k, accepted, is_refused=False))
        accepts, tried = 0.9 * accepts + accepted, 0.9 * tried + min(accepted + 1, k)
    assert own.accepts / own.trials == pytest.approx(accepts / tried)
    assert own.band == band_of(own.accepts / own.trials)
    assert own.drafts == len(drafts)


def test_a_refused_token_was_tried_and_one_after_the_cut_was_not() -> None:
    assert [trials(3, accepted, is_refused=False) for accepted in range(4)] == [1, 2, 3, 3]
    assert [trials(3, accepted, is_refused=True) for accepted in range(4)] == [1, 2, 3, 4]
    assert trials(0, 0, is_refused=True) == 1


@pytest.mark.parametrize("p", [0.1, 0.4, 0.7, 0.95])
def test_how_deep_k_lets_drafts_go_does_not_bias_the_estimate(p: float) -> None:
    rng, means = random.Random(2), []
    for k in (1, 3, 7):
        own, seen = Acceptance(p), []
        for _ in range(20_000):
            accepted = next((i for i in range(k) if rng.random() > p), k)
            own.note(accepted, trials(k, accepted, is_refused=False))
            seen.append(own.accepts / own.trials)
        means.append(sum(seen) / len(seen))
    assert means == pytest.approx([p] * 3, abs=0.02)


def drafts_until(own: Acceptance, change: int, draft: tuple[int, int]) -> int:
    """Return how many drafts of (K, accepted) it takes until the band has changed by `change`."""
    wanted = own.band + change
    for count in range(1, 100):
        own.note(draft[1], trials(*draft, is_refused=False))
        if own.band == wanted:
            return count
    raise AssertionError


@pytest.mark.parametrize(("change", "count"), [(-1, 5), (-2, 12)])
def test_text_that_is_half_accepted_falls_from_whole_drafts_of_7_as_documented(change: int, count: int) -> None:
    own = Acceptance(0.7)
    for _ in range(100):
        own.note(7, trials(7, 7, is_refused=False))
    assert drafts_until(own, change, (7, 1)) == count


@pytest.mark.parametrize(("change", "count"), [(1, 2), (2, 6)])
def test_whole_probes_of_4_raise_text_that_was_half_accepted_as_documented(change: int, count: int) -> None:
    own = Acceptance(0.7)
    for _ in range(100):
        own.note(1, trials(4, 1, is_refused=False))
    assert drafts_until(own, change, (4, 4)) == count


def test_a_kind_starts_at_the_mean_of_its_first_drafts_and_one_never_seen_at_the_mean_of_all() -> None:
    begins = Starts()
    assert 0.5 < begins.of(kind("chat")) < 1.0  # before any draft: drafting is worth a try
    for _ in range(200):
        begins.note(kind("chat", 1.0), 0, 1)
        begins.note(kind("chat", 0.0), 1, 2)
    assert begins.of(kind("chat", 1.0)) < 0.02
    assert begins.of(kind("chat", 0.0)) == pytest.approx(0.5, abs=0.01)
    assert 0.3 < begins.of(kind("code")) < 0.4
    assert begins.of(kind("code")) == begins.of(kind("chat", is_structured=True))


def test_temperatures_are_distinguished_by_range() -> None:
    assert [kind_of("a", t, is_structured=False).temperature for t in (0.0, 0.01, 0.2, 0.5, 0.7, 0.9, 1.0, 2.0)] == [
        0, 0, 1, 1, 2, 2, 3, 3,
    ]  # fmt: skip


def test_the_number_of_kinds_is_bounded_and_the_latest_are_kept() -> None:
    begins = Starts()
    for number in range(1000):
        begins.note(kind(f"class-{number}"), 1, 2)
    assert 16 <= len(begins.known()) < 1000
    assert kind("class-999") in begins.known()
