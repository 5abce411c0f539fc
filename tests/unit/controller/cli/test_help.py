"""`--help` also helps after a command that still lacks its names."""

import importlib

import pytest


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("policy", ["put", "--help"]),
        ("policy", ["diff", "demo", "-h"]),
        ("policy", ["canary", "start", "--help"]),
        ("admin_token", ["revoke", "--help"]),
        ("client_key", ["revoke", "-h"]),
        ("models", ["set", "-h"]),
    ],
)
def test_help_prints_the_usage_and_is_no_error(
    module: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        importlib.import_module(f"specpilot.controller.cli.{module}").main(words)
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith("usage: specpilot ")
