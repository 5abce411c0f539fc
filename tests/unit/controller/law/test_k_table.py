import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specpilot.controller.law.k_table import KTable, grid, k_at
from specpilot.policy.types import KRange, Schedule

NAMES = ("default", "default:3", "code:7")


def table(values: list[int], size: int = 40) -> KTable:
    n = grid(size)
    k = np.resize(np.array(values, dtype=np.int64), (len(n), len(NAMES)))
    return KTable(NAMES, n, k)


@given(st.lists(st.integers(0, 7), min_size=1, max_size=30), st.integers(1, 300))
def test_a_table_and_its_ranges_say_the_same(values: list[int], size: int) -> None:
    found = table(values, size)
    ranges = found.to_ranges()
    Schedule("m", "p", 1, 0.0, 60.0, 0.0, ranges)  # valid
    assert KTable.of_ranges(ranges, NAMES, found.n).same_as(found)


def test_tables_of_other_names_are_never_the_same_even_of_one_shape() -> None:
    one = KTable.uniform(("default", "code"), grid(8), 3)
    assert not one.same_as(KTable.uniform(("default", "chat"), grid(8), 3))


def test_a_row_that_a_schedule_lacks_is_what_an_engine_would_take() -> None:
    ranges = {"default": (KRange(1, 9, 1),), "default:3": (KRange(1, 9, 3),), "code": (KRange(1, 9, 5),)}
    found = KTable.of_ranges(ranges, ("code:2", "chat:3", "chat:4", "chat", "default:3"), grid(1))
    assert found.k.tolist() == [[5, 3, 1, 1, 3]]


def test_the_grid_is_every_number_at_first_and_ends_where_engines_do() -> None:
    assert grid(1).tolist() == [1]
    found = grid(256)
    assert found[:16].tolist() == list(range(1, 17))
    assert found[-1] == 256
    assert (np.diff(found) > 0).all()
    assert (found[1:] / found[:-1])[16:].max() <= 1.25


def test_above_the_last_range_its_k_holds() -> None:
    assert k_at((KRange(1, 4, 7), KRange(5, 8, 2)), 100) == 2


def test_rows_serve_means_of_decodes() -> None:
    assert table([0]).indices_at(np.array([0.2, 1.4, 15.6, 17.0, 99.0])).tolist() == [0, 0, 15, 15, len(grid(40)) - 1]


def test_a_row_begins_where_a_graph_ends() -> None:
    found = grid(100, {65, 37, 513}).tolist()
    assert {37, 65} <= set(found)
    assert found == sorted(set(found))
    assert found[-1] == 100
