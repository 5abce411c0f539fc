"""How several workers start, and what keeps them from it: a port that is taken, no room for files."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

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


def test_a_temporary_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    command = [sys.executable, "-c", NO_TEMPORARY, "--engine", "http://x", "--port", "0", "--workers", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 2
    assert "TMPDIR" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_disk_that_is_full_at_the_start_is_named(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-c", FULL_DISK, "--engine", "http://x", "--port", "0", "--workers", "2"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=environment)
    assert done.returncode == 2
    assert f"cannot be written to {tmp_path}/specpilot-gateway-" in done.stderr
    assert "TMPDIR" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not [*tmp_path.iterdir()]


# Room for the file by which `tempfile` tries a directory, and for no more.
FULL_DISK = (
    "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (8, 8));"
    "import specpilot.gateway.__main__ as g; g.main(sys.argv[1:])"
)
NO_TEMPORARY = (
    "import sys, tempfile; tempfile.tempdir = '/does/not/exist';"
    "import specpilot.gateway.__main__ as g; g.main(sys.argv[1:])"
)
