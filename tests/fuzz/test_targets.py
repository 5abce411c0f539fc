"""The targets, by hypothesis: inputs that are strung together from words, cut out of seeds, or arbitrary."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.seeds import SEEDS, WORDS
from tests.fuzz.targets import TARGETS

EXAMPLES = 600
SLOWEST_MS = 10_000


def inputs(target: str) -> st.SearchStrategy[bytes]:
    seeds = st.sampled_from(SEEDS[target])
    words = st.sampled_from(WORDS[target])

    def with_words(seed: bytes) -> st.SearchStrategy[bytes]:
        edit = st.tuples(st.integers(0, len(seed)), st.integers(0, 6), words | st.binary(max_size=3))
        return st.lists(edit, max_size=4).map(lambda edits: _edited(seed, edits))

    strung = st.lists(words | st.binary(max_size=3), max_size=12).map(b"".join)
    return st.one_of(seeds.flatmap(with_words), strung, st.tuples(seeds, strung).map(b"".join))


def _edited(seed: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
    for at, dropped, word in sorted(edits, reverse=True):
        seed = seed[:at] + word + seed[at + dropped :]
    return seed


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_breaks_what_must_hold(name: str) -> None:
    check = TARGETS[name]

    @settings(max_examples=EXAMPLES, deadline=SLOWEST_MS)
    @given(inputs(name))
    def run(data: bytes) -> None:
        check(data)

    run()


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_has_seeds_that_hold(name: str) -> None:
    assert set(SEEDS) == set(WORDS) == set(TARGETS)
    for seed in SEEDS[name]:
        TARGETS[name](seed)
