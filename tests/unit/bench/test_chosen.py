"""What a measurement is asked to do."""

import pytest

from specpilot.bench.chosen import chosen
from tests.support.refusals import refusal


def test_names_come_in_their_order_and_nothing_names_nothing() -> None:
    assert chosen("bench", "--only", "b,a", {"a": 1, "b": 2}) == ["b", "a"]
    assert chosen("bench", "--only", "", ("a",)) == []


def test_an_unknown_name_ends_the_program_with_those_that_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, chosen, "bench", "--only", "a,c", ("a", "b"))
    assert said == "bench: --only: 'c' is none of a, b\n"
