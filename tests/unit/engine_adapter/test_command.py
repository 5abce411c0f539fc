"""What `specpilot engine` refuses before vLLM starts, by what the environment says."""

import pytest

from engine_adapter import compat
from engine_adapter.__main__ import main


@pytest.mark.parametrize(
    ("any_vllm", "words"),
    [
        ("", "no engine of it was tested"),
        ("1", "--model: no model in ./nowhere"),
        ("perhaps", "SPECPILOT_ENGINE_ANY_VLLM: "),
    ],
)
def test_the_environment_accepts_an_untested_vllm_as_the_flag_does(
    any_vllm: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compat, "TESTED_VERSIONS", ("0.1",))
    monkeypatch.setenv("SPECPILOT_ENGINE_ANY_VLLM", any_vllm)
    with pytest.raises(SystemExit) as ended:
        main(["--model", "./nowhere"])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
