import pytest

from specpilot.gateway.relay.read_turns import (
    LINES_A_TURN,
    end_of_turn,
    has_many_lines,
)

LINE = b"x: y\r\n"


@pytest.mark.parametrize(
    ("data", "is_many"),
    [
        (b"", False),
        (b"x" * 100_000, False),
        (LINE * LINES_A_TURN, False),
        (LINE * (LINES_A_TURN + 1), True),
        (b"\r" * 10_000, False),
        (b"\n" * 10_000, False),
        (b"\r" * 10_000 + LINE * (LINES_A_TURN + 1), True),
    ],
)
def test_only_whole_line_ends_count(data: bytes, is_many: bool) -> None:
    assert has_many_lines(data) == is_many


@pytest.mark.parametrize("more", [b"", b"x", LINE, LINE * 1000])
def test_a_turn_ends_after_a_line(more: bytes) -> None:
    whole = LINE * LINES_A_TURN
    assert end_of_turn(whole + more) == len(whole)


@pytest.mark.parametrize("data", [b"", b"x", LINE, LINE * (LINES_A_TURN - 1) + b"x", b"\r" * 1000])
def test_fewer_lines_are_one_turn(data: bytes) -> None:
    assert end_of_turn(data) == len(data)
