"""The pages about the commands and about `specpilot up` say what the code does."""

import re
from importlib import import_module
from pathlib import Path

import pytest

from specpilot.cli import COMMANDS
from specpilot.up_settings import UpSettings
from tests.support.refusals import refusal

REFERENCE = Path(__file__).resolve().parents[3] / "docs" / "reference"
PAGE = (REFERENCE / "commands.md").read_text()


def test_every_command_has_a_row_and_every_row_a_command() -> None:
    assert re.findall(r"^\| `specpilot ([a-z]+)` \|", PAGE, re.MULTILINE) == list(COMMANDS)


@pytest.mark.parametrize("command", sorted(set(COMMANDS) - {"engine"}))  # what it does not know goes to vLLM
def test_a_wrong_argument_ends_with_status_2(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "| 2 |" in PAGE
    assert refusal(capsys, import_module(COMMANDS[command][0]).main, ["--no-such-flag"])


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        import_module(COMMANDS[command][0]).main(["--help"])
    except SystemExit as ended:
        assert ended.code == 0
    said = "".join(capsys.readouterr())
    assert "usage" in said
    assert re.findall(r"\{[^}]*[A-Z][^}]*\}", said) == []  # names of constants, which are no values


def test_every_flag_of_up_has_a_row_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `--([a-z-]+)` \| ([^|]+) \|", (REFERENCE / "up.md").read_text(), re.MULTILINE))
    assert {name.replace("-", "_") for name in rows} == set(UpSettings.model_fields)
    for name, field in UpSettings.model_fields.items():
        if isinstance(field.default, int | float) and not isinstance(field.default, bool):
            assert rows[name.replace("_", "-")] == f"`{field.default:g}`", name
