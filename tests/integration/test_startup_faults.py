"""What a wrong setting shows at start: one line that names it and the remedy, and exit status 2."""

import socket
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from specpilot.cli import COMMANDS
from tests.support.commands import run
from tests.support.redis_server import RedisServer

NOWHERE = "redis://127.0.0.1:1"
SOME = ("--redis-url", NOWHERE)
ENGINE = ("--engine", "http://x")
Refused = Callable[..., None]
THREE = (*ENGINE, "--port", "0", "--workers", "3")


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder of the test's own, and no address of Redis but what a command line names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REDIS_URL", raising=False)


@pytest.fixture
def refused(capfd: pytest.CaptureFixture[str]) -> Refused:
    """Start a command that cannot: what it says begins with its name, and has the fault, no traceback and no secret."""

    def check(*arguments: str, said: Iterable[str]) -> None:
        done = run(*arguments)
        told = done.stderr + capfd.readouterr().err  # and what workers say, which are processes
        assert done.returncode == 2, told
        assert told.startswith("specpilot"), told
        assert told.count("\n") == 1 or arguments[0] != "gateway", told
        assert "Traceback" not in told
        assert "secret" not in told
        assert all(word in told for word in said), told

    return check


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
        (("gateway",), ("--redis-url:", "--engine")),
        (("gateway", "--engine", "ftp://x"), ("--engine", "http")),
        (("gateway", "--engine", "localhost:8100"), ("--engine:", "http://")),
        (("gateway", *ENGINE, "--host", "not an address"), ("--host:",)),
        (("gateway", *ENGINE, "--host", "no..name"), ("--host:", "no..name is no address")),
        (("gateway", *ENGINE, "--api-keys-file", "/does/not/exist"), ("--api-keys-file:", "check the path")),
        (("gateway", *THREE, "--api-keys-file", "/does/not/exist"), ("--api-keys-file:",)),
        (("gateway", *THREE, "--host", "not an address"), ("--host:",)),
        (("gateway", *THREE, "--port", "hundred"), ("--port:",)),
        (("gateway", *THREE, "--workers", "0"), ("--workers:",)),
        (("bench", "demo", "--trace", "/nowhere.json"), ("/nowhere.json",)),
        (("bench", "demo", "--static", "many"), ("--static", "0,3,7")),
        (("fly",), ("no such command",)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_wrong_setting_names_itself_and_the_remedy(
    refused: Refused, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    refused(*arguments, said=words)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "no..name"])
def test_a_host_without_an_address_is_named_by_a_controller(refused: Refused, server: RedisServer, host: str) -> None:
    refused("controller", "--redis-url", server.url, "--host", host, said=[host])


@pytest.mark.parametrize(
    "arguments",
    [("gateway", *ENGINE), ("engine", "--model", "name"), ("up",), ("controller", "--redis-url")],
    ids=lambda value: value[0],
)
def test_a_busy_port_is_named(refused: Refused, arguments: tuple[str, ...], server: RedisServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        own = (server.url,) if arguments[-1] == "--redis-url" else ()
        refused(*arguments, *own, "--port", port, said=[port, "--port"])


def test_without_a_command_the_commands_are_listed() -> None:
    done = run()
    assert done.returncode == 2
    assert all(command in done.stdout for command in COMMANDS)
