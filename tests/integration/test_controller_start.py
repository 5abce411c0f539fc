"""What a wrong setting shows when the controller starts: one line that names it and the remedy, and status 2."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from tests.support.patience import PATIENCE_S
from tests.support.redis_server import RedisServer


def start(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "specpilot.controller", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ("--redis-url", "is missing")),
        (("--redis-url", "redis://me:secret@127.0.0.1:1"), ("--redis-url", "***@127.0.0.1:1", "start Redis")),
        (("--redis-url", "http://x"), ("--redis-url", "redis://")),
        (("--interval-s", "0"), ("--interval-s",)),
        (("--default-mode", "fast"), ("--default-mode", "'advise'")),
        (("--host", "no.such.host.invalid"), ("no.such.host.invalid",)),
        (("--host", "no..name"), ("no..name",)),
        (("--prometheus", "http://[::1"), ("--prometheus: is no address",)),
        (("--oidc-issuer", "https://a:b"), ("--oidc-issuer: is no address",)),
    ],
    ids=lambda value: " ".join(value[:2]) or "nothing",
)
def test_a_wrong_setting_names_itself_and_the_remedy(
    server: RedisServer, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    with_redis = arguments if not arguments or "--redis-url" in arguments else ("--redis-url", server.url, *arguments)
    done = start(*with_redis)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "secret" not in done.stderr
    for word in words:
        assert word in done.stderr


def test_a_busy_port_is_named(server: RedisServer) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = start("--redis-url", server.url, "--port", port)
    assert done.returncode == 2
    assert f"127.0.0.1:{port}" in done.stderr
    assert "another --port" in done.stderr


def test_every_line_is_json_where_that_is_asked_for(server: RedisServer) -> None:
    environment = {**os.environ, "REDIS_URL": server.url}
    arguments = ["--port", "0", "--log-format", "json"]
    done = start(*arguments, "--default-mode", "no")
    assert done.returncode == 2
    process = subprocess.Popen(
        [sys.executable, "-m", "specpilot.controller", *arguments], env=environment, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    first = process.stderr.readline()
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    said = done.stderr + first + process.stderr.read()
    process.stderr.close()
    process.wait(PATIENCE_S)
    lines = [json.loads(line) for line in said.splitlines()]
    assert any("admin API and console on" in line["message"] for line in lines)
    assert any(line["level"] == "warning" for line in lines)
