"""`specpilot explain`: its moment, and what it says of engines whose K is fixed."""

from typing import Any

import pytest

from specpilot.controller.cli import explain
from tests.support.refusals import refusal

GROUP = {"decodes": 4, "classes": ["code"], "band": 5, "k": 4, "why": "it pays"}


@pytest.mark.parametrize("at", ["inf", "nan", "-1", "0", "1e12", "2026-01-31T12:00:00.5.5Z", "soon"])
def test_what_is_no_moment_ends_with_status_2_in_one_line(at: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, explain.main, [f"--at={at}"])
    assert (said.count("\n"), said.startswith("specpilot explain: --at: ")) == (1, True)


def answers(cause: str | None) -> dict[str, Any]:
    return {
        "answers": [{"groups": [GROUP], "cause": cause}], "engines": 1, "unknown": "", "silent": {},
        "in_force": None, "chosen": None, "static": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("cause", "is_held", "said"),
    [
        (None, False, []),
        ("frozen", True, []),  # the groups have the K of the freeze
        ("frozen", False, ["K is fixed (frozen); the law would choose:"]),
        ("off", False, ["K is fixed (off); the law would choose:"]),
    ],
)
def test_the_choice_of_the_law_is_not_said_to_be_in_force_while_k_is_fixed(
    cause: str | None, is_held: bool, said: list[str]
) -> None:
    lines = explain._engine_lines(answers(cause), is_held=is_held)
    assert lines == ["1 of 1 engines say:", *said, "  4 decodes of code, band 5: K 4: it pays"]
