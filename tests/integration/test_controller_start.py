"""What the controller shows when it starts: an address that it cannot listen on, and lines in JSON."""

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


@pytest.mark.parametrize("host", ["no.such.host.invalid", "no..name"])
def test_a_host_without_an_address_is_named(server: RedisServer, host: str) -> None:
    done = start("--redis-url", server.url, "--host", host)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert host in done.stderr


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
