"""Which rows go through the drafter, in which passes, and which are too late."""

from specpilot.engine_adapter.plan.missing_rows import MissingRows, missing_rows, passes, within


def test_the_rows_of_requests_that_catch_up_are_gathered_in_the_order_of_the_batch() -> None:
    rows = {"a": [0, 3], "b": [1, 2, 4], "c": [5], "gone": [6]}
    assert missing_rows(rows, ["c", "a", "b", "new"], ["a", "b", "new", "gone"]) == ([1, 2], [[0, 3], [1, 2, 4]])


def test_rows_beyond_one_pass_go_through_several() -> None:
    missing, ends = MissingRows([0, 2, 3, 5], [[0, 1], [2, 3], [4, 5, 6], [7]]), [9, 8, 7, 6]
    assert list(passes(missing, ends, 4)) == [
        (MissingRows([0, 2], [[0, 1], [2, 3]]), [9, 8]),
        (MissingRows([3, 5], [[4, 5, 6], [7]]), [7, 6]),
    ]
    assert list(passes(MissingRows([], []), [], 4)) == []


def test_a_request_with_more_rows_than_a_pass_takes_goes_through_in_parts() -> None:
    assert list(passes(MissingRows([1, 4], [[0, 1], [2, 3, 5, 6, 7, 9, 8]]), [20, 30], 3)) == [
        (MissingRows([1, 4], [[0, 1], [2]]), [20, 24]),
        (MissingRows([4], [[3, 5, 6]]), [27]),
        (MissingRows([4], [[7, 9, 8]]), [30]),
    ]


def test_rows_past_the_drafters_length_limit_are_left_out() -> None:
    missing = MissingRows([0, 2, 3], [[0, 1, 2], [3, 4, 5], [6]])
    assert within(missing, [100, 999, 102, 120], 100) == (MissingRows([0, 2], [[0, 1, 2], [3]]), [100, 100])
    assert within(missing, [50, 999, 51, 52], 100) == (missing, [50, 51, 52])
