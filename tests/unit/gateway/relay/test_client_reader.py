import pytest

from specpilot.gateway.relay.client_reader import LINES_A_TURN, end_of_turn

LINE = b"x: y\r\n"


@pytest.mark.parametrize("more", [b"", b"x", LINE, LINE * 1000])
def test_a_turn_ends_after_a_line(more: bytes) -> None:
    whole = LINE * LINES_A_TURN
    assert end_of_turn(whole + more) == len(whole)


@pytest.mark.parametrize("data", [b"", b"x", LINE, LINE * (LINES_A_TURN - 1) + b"x", b"\r" * 1000, b"\n" * 1000])
def test_fewer_lines_are_one_turn(data: bytes) -> None:
    assert end_of_turn(data) == len(data)
