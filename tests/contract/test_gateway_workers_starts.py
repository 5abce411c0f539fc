"""How several workers start, and what keeps them from it: a bad setting, a port that is taken, no room for files."""

import asyncio
import subprocess
import sys

import pytest

from tests.contract.conftest import StartWorkers
from tests.support.patience import PATIENCE_S


def gateway(port: int, workers: int, *flags: str) -> list[str]:
    """The command of a gateway of several workers."""
    own = ("--engine", "http://x", "--port", str(port), "--workers", str(workers))
    return [sys.executable, "-m", "specpilot.gateway", *own, *flags]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--api-keys-file", "/does/not/exist"], "--api-keys-file:"),
        (["--port", "hundred"], "--port:"),
        (["--host", "not an address"], "--host:"),
        (["--workers", "0"], "--workers:"),
    ],
)
def test_a_bad_setting_is_reported_once(flags: list[str], said: str) -> None:
    command = gateway(0, 3, *flags)
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert said in done.stderr


async def test_a_port_that_another_gateway_shares_among_its_workers_is_taken(start_workers: StartWorkers) -> None:
    program = await start_workers()
    command = gateway(program.port, 2)
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 2
    assert "--port: cannot listen on" in done.stderr
