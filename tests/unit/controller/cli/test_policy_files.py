"""Files that hold no policy end a command in one line."""

from pathlib import Path

import pytest

from specpilot.controller.cli.policy import _policy_in
from tests.support.refusals import refusal


@pytest.mark.parametrize(
    "text", ["", "[]", '{"model": 5}', '{"model": "\\ud800"}', '{"model": "a\\n"}', '{"a": ' + "[" * 100_000]
)
def test_a_file_without_a_policy_is_refused(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "policy.json"
    file.write_text(text)
    assert refusal(capsys, _policy_in, str(file)).startswith("specpilot policy: put: ")
