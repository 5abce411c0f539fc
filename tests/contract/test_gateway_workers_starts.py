"""How several workers start, and what keeps them from it: a port that is taken, no room for files."""

import asyncio
import subprocess
import sys

from tests.contract.conftest import StartProgram
from tests.support.patience import PATIENCE_S


def gateway(port: int, workers: int, *flags: str) -> list[str]:
    """The command of a gateway of several workers."""
    own = ("--engine", "http://x", "--port", str(port), "--workers", str(workers))
    return [sys.executable, "-m", "specpilot.gateway", *own, *flags]


async def test_a_port_that_another_gateway_shares_among_its_workers_is_taken(start_workers: StartProgram) -> None:
    program = await start_workers()
    command = gateway(program.port, 2)
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 2
    assert "--port: cannot listen on" in done.stderr
