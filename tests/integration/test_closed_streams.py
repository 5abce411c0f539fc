"""Programs that a launcher starts with closed standard streams serve, and end with status 0."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from urllib.request import urlopen

import pytest

from tests.support.redis_server import RedisServer
from tests.support.stack import free_port, until


def _answers(url: str, process: "subprocess.Popen[bytes]") -> bool:
    assert process.poll() is None, "it ended"
    try:
        with urlopen(url, timeout=5):
            return True
    except OSError:
        return False


@pytest.mark.parametrize("closed", [(2,), (0, 1), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("flags", [("gateway",), ("gateway", "--workers", "2"), ("controller",)], ids=" ".join)
def test_a_program_serves_with_closed_streams_and_ends_well(
    flags: Sequence[str], closed: Sequence[int], server: RedisServer
) -> None:
    port = free_port()
    words = [sys.executable, "-P", "-m", "specpilot.cli", *flags, "--port", str(port), "--redis-url", server.url]
    if flags[0] == "controller":
        words.append("--trust-this-machine")
    process = subprocess.Popen(words, preexec_fn=lambda: [os.close(number) for number in closed])  # noqa: PLW1509 - system calls only
    try:
        until(lambda: _answers(f"http://127.0.0.1:{port}/health", process), 60.0)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
