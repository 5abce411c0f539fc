"""What `specpilot engine` makes of the environment before it becomes vLLM."""

import os
from collections.abc import Mapping

import pytest

from engine_adapter import compat
from engine_adapter.__main__ import main
from engine_adapter.settings import AdapterSettings


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


class _BecameVllmError(Exception):
    """What `exec` would have started."""


def settings_of(monkeypatch: pytest.MonkeyPatch, *flags: str, **environment: str) -> AdapterSettings:
    """The settings that the adapter finds in vLLM's processes."""

    def become(path: str, command: list[str], found: Mapping[str, str]) -> None:
        raise _BecameVllmError(found)

    monkeypatch.setattr(os, "execve", become)
    for name in [name for name in os.environ if name.startswith("SPECPILOT_") or name == "REDIS_URL"]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(_BecameVllmError) as became:
        main(["--model", "some/model", "--port", "0", "--no-async-scheduling", "--any-vllm", *flags])
    for name, value in became.value.args[0].items():
        if name.startswith("SPECPILOT_") or name == "REDIS_URL":
            monkeypatch.setenv(name, value)
    return AdapterSettings()


def test_what_no_flag_says_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    found = settings_of(
        monkeypatch,
        SPECPILOT_ENGINE_URL="http://gpu-1:8000",
        SPECPILOT_ENGINE_POOL="h200",
        SPECPILOT_ENGINE_REDIS_URL="redis://one",
        REDIS_URL="redis://other",
    )
    assert (found.url, found.pool, found.redis_url) == ("http://gpu-1:8000", "h200", "redis://one")


def test_a_flag_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ("--advertise-url", "http://gpu-2:8000", "--pool", "h100", "--redis-url", "redis://two")
    found = settings_of(
        monkeypatch,
        *flags,
        SPECPILOT_ENGINE_URL="http://gpu-1:8000",
        SPECPILOT_ENGINE_POOL="h200",
        REDIS_URL="redis://x",
    )
    assert (found.url, found.pool, found.redis_url) == ("http://gpu-2:8000", "h100", "redis://two")


def test_without_either_the_engine_is_where_it_listens_and_in_the_default_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    found = settings_of(monkeypatch, "--host", "0.0.0.0", REDIS_URL="redis://x")
    assert (found.url, found.pool, found.redis_url) == ("http://127.0.0.1:0", "default", "redis://x")
