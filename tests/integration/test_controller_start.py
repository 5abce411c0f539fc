"""What the controller shows when it starts, in JSON."""

import json
import os
import signal
import subprocess
import sys
import time

from tests.support.commands import run
from tests.support.patience import PATIENCE_S
from tests.support.redis_server import RedisServer


def test_every_line_is_json_where_that_is_asked_for(server: RedisServer) -> None:
    environment = {**os.environ, "REDIS_URL": server.url}
    arguments = ["--port", "0", "--log-format", "json"]
    done = run("controller", "--redis-url", server.url, *arguments, "--default-mode", "no")
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
