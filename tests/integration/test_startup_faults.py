"""What a wrong setting shows at start: one line that names it and the remedy, and exit status 2."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from specpilot.cli import COMMANDS
from tests.support.patience import PATIENCE_S

NOWHERE = "redis://127.0.0.1:1"
SOME = ("--redis-url", NOWHERE)


def run(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "specpilot.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S, cwd=folder)


@pytest.fixture
def busy_port() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield str(taken.getsockname()[1])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("up", "--model", "/nowhere"), ("--model", "config.json")),
        (("up", "--drafter", "./nowhere"), ("--drafter", "name a model folder")),
        (("up", "--redis-url", "http://x"), ("--redis-url", "leave it out")),
        (("up", "--k", "9"), ("--k", "at most --k-max, 7")),
        (("up", "--mode", "fast"), ("--mode", "advise")),
        (("up", "--port", "zero"), ("--port",)),
        (("engine", "--model", "./nowhere"), ("--model", "config.json")),
        (("engine", "--model", "name", "--drafter", "/nowhere"), ("--drafter", "config.json")),
        (("engine", "--model", "name", "--speculative-config", "{"), ("--speculative-config", "JSON")),
        (("engine", "--model", "name", "--drafter", "head", "--k-max", "0"), ("--k-max", "at least 1")),
        (("controller",), ("--redis-url", "is missing")),
        (
            ("controller", "--redis-url", "redis://me:secret@127.0.0.1:1"),
            ("--redis-url", "***@127.0.0.1:1", "start Redis"),
        ),
        (("controller", "--redis-url", "http://x"), ("--redis-url", "redis://")),
        (("controller", *SOME, "--interval-s", "0"), ("--interval-s",)),
        (("controller", *SOME, "--default-mode", "fast"), ("--default-mode", "'advise'")),
        (("controller", *SOME, "--prometheus", "http://[::1"), ("--prometheus: is no address",)),
        (("controller", *SOME, "--oidc-issuer", "https://a:b"), ("--oidc-issuer: is no address",)),
        (("gateway", "--redis-url", NOWHERE), ("--redis-url", "Redis")),
        (("gateway", "--engine", "ftp://x"), ("--engine", "http")),
        (("bench", "demo", "--trace", "/nowhere.json"), ("/nowhere.json",)),
        (("bench", "demo", "--static", "many"), ("--static", "0,3,7")),
        (("fly",), ("no such command",)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_wrong_setting_names_itself_and_the_remedy(
    arguments: tuple[str, ...], words: tuple[str, ...], tmp_path: Path
) -> None:
    done = run(*arguments, folder=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "secret" not in done.stderr
    for word in words:
        assert word in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("gateway", "--engine", "http://127.0.0.1:1", "--port"),
        ("engine", "--model", "name", "--port"),
        ("up", "--port"),
    ],
    ids=lambda value: value[0],
)
def test_a_busy_port_is_named(arguments: tuple[str, ...], busy_port: str, tmp_path: Path) -> None:
    done = run(*arguments, busy_port, folder=tmp_path)
    assert done.returncode == 2, done.stderr
    assert busy_port in done.stderr
    assert "--port" in done.stderr


def test_without_a_command_the_commands_are_listed() -> None:
    done = run()
    assert done.returncode == 2
    assert all(command in done.stdout for command in COMMANDS)
