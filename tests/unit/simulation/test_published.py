"""Conditional acceptance from published lengths gives these lengths back, and every load has its sources."""

import json
from itertools import accumulate
from operator import mul

import pytest

from tests.simulation.gpu_plants import DOCUMENT
from tests.simulation.published import Load, by_position, loads, texts


def length(acceptance: tuple[float, ...], k: int) -> float:
    return 1.0 + sum(accumulate(acceptance[:k], mul))


@pytest.mark.parametrize("name", texts())
def test_acceptance_by_position_gives_the_published_lengths_back(name: str) -> None:
    text = texts()[name]
    found = by_position(text.lengths, 10)
    assert all(0 < item < 1 for item in found)
    for k, published in text.lengths.items():
        assert length(found, k) == pytest.approx(published, abs=1e-6)


def test_acceptance_is_alike_between_published_lengths_and_beyond_them() -> None:
    found = by_position({3: 3.02, 7: 3.94}, 9)
    assert found[:3] == pytest.approx([0.815] * 3, abs=0.002)
    assert found[3:] == pytest.approx([0.686] * 6, abs=0.002)
    assert by_position({10: 1.20}, 7) == pytest.approx([0.1667] * 7, abs=0.001)


def test_every_text_has_its_source_and_every_load_its_texts() -> None:
    document = json.loads(DOCUMENT.read_text())
    assert all(item["source"] and item["head"] for item in document["texts"])
    for load in loads().values():
        assert sum(load.shares.values()) == pytest.approx(1.0)
        assert load.shares.keys() <= texts().keys()


def test_a_load_is_played_where_its_shares_come_to_whole_requests() -> None:
    load = Load("mixed", {"humaneval": 0.5, "mt-bench": 0.25, "speed-bench": 0.25})
    assert load.counts(8) == {"humaneval": 4, "mt-bench": 2, "speed-bench": 2}
    assert load.counts(2) is None
