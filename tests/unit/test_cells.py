"""Which tests `make test` runs beside those that always run."""

import hashlib
from collections import Counter

from tests.conftest import drawn_cell


def test_a_commit_always_draws_the_same_cell_and_over_time_all_are_drawn_alike() -> None:
    cells = [f"cell {number}" for number in range(24)]
    commits = [hashlib.sha1(str(number).encode()).hexdigest() for number in range(2400)]
    drawn = [drawn_cell(cells, commit) for commit in commits]
    assert drawn == [drawn_cell(cells[::-1], commit) for commit in commits]
    counts = Counter(drawn)
    assert set(counts) == set(cells)
    assert min(counts.values()) > 60
