"""Which rows of the backlog go through the drafter."""

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore::DeprecationWarning")]  # vLLM's own, on import


def test_rows_are_gathered_by_request_in_the_order_of_the_batch() -> None:
    from engine_adapter.backlog import lag  # noqa: PLC0415 - imports vLLM, which takes seconds

    steps = [["a", "b"], ["b", "a"], ["b", "c"]]  # rows 0..5
    assert lag(steps, ["c", "a", "b"], set()) == ([0, 1, 2], [[5], [0, 3], [1, 2, 4]])


def test_requests_that_ended_or_began_anew_give_no_rows() -> None:
    from engine_adapter.backlog import lag  # noqa: PLC0415 - as above

    steps = [["gone", "again", "a"], ["again", "a"]]
    assert lag(steps, ["again", "a", "new"], {"again", "new"}) == ([1], [[2, 4]])
    assert lag(steps, ["new"], {"new"}) == ([], [])
