"""Which rows go through the drafter, in which passes, and which are too late."""

from specpilot.engine_adapter.plan.missing_rows import Span, passes, spans_of, within


def test_the_rows_of_requests_that_catch_up_are_gathered_in_the_order_of_the_batch() -> None:
    rows = {"a": [0, 3], "b": [1, 2, 4], "c": [5], "gone": [6]}
    spans = spans_of(rows, ["c", "a", "b", "new"], ["a", "b", "new", "gone"], [9, 8, 7, 6])
    assert spans == [Span(1, [0, 3], 8), Span(2, [1, 2, 4], 7)]


def test_rows_beyond_one_pass_go_through_several() -> None:
    spans = [Span(0, [0, 1], 9), Span(2, [2, 3], 8), Span(3, [4, 5, 6], 7), Span(5, [7], 6)]
    assert [*passes(spans, 4)] == [spans[:2], spans[2:]]
    assert [*passes([], 4)] == []


def test_a_request_with_more_rows_than_a_pass_takes_goes_through_in_parts() -> None:
    assert [*passes([Span(1, [0, 1], 20), Span(4, [2, 3, 5, 6, 7, 9, 8], 30)], 3)] == [
        [Span(1, [0, 1], 20), Span(4, [2], 24)],
        [Span(4, [3, 5, 6], 27)],
        [Span(4, [7, 9, 8], 30)],
    ]


def test_rows_past_the_drafters_length_limit_are_left_out() -> None:
    spans = [Span(0, [0, 1, 2], 100), Span(2, [3, 4, 5], 102), Span(3, [6], 120)]
    assert within(spans, 100) == [spans[0], Span(2, [3], 100)]
    assert within(spans, 1000) == spans
