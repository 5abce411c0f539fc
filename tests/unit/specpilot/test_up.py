"""What `specpilot up` makes of its flags, up to the processes it would start."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.settings import GatewaySettings
from policy.settings import load
from specpilot import up
from specpilot.up import UpSettings
from tests.support.stack import free_port


def settings_of(*flags: str) -> UpSettings:
    return load(UpSettings, up.PROGRAM, flags)


@pytest.mark.parametrize(("flags", "workers"), [((), 1), (("--workers", "3"), 3)])
def test_workers_reach_the_gateway(flags: tuple[str, ...], workers: int) -> None:
    command = next(part.command for part in up._servers(settings_of(*flags), "unix:///x") if part.name == "gateway")
    at = command.index("gateway")
    settings = load(GatewaySettings, "specpilot gateway", command[at + 1 :])
    assert settings.workers == workers
    assert settings.redis_url == "unix:///x"


@pytest.mark.parametrize(
    ("cores", "workers", "engines", "servers"),
    [
        ({0}, 1, [0], [0]),
        ({0}, 4, [0], [0]),
        ({0, 1}, 1, [0], [1]),
        ({0, 1}, 4, [0], [1]),
        ({2, 3, 5, 7}, 1, [2, 3, 5], [7]),
        ({2, 3, 5, 7}, 2, [2, 3], [5, 7]),
    ],
)
def test_each_gateway_worker_has_a_core_that_is_no_engines(
    monkeypatch: pytest.MonkeyPatch, cores: set[int], workers: int, engines: list[int], servers: list[int]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores)
    assert up._cores(settings_of("--workers", str(workers))) == (engines, servers)


@pytest.mark.parametrize("flags", [("--workers", "0"), ("--workers", "two"), ("--state-dir", "/dev/null/x")])
def test_a_flag_that_cannot_work_is_one_line_that_names_it(flags: tuple[str, str], tmp_path: Path) -> None:
    ports = [f"--{name}={free_port()}" for name in ("port", "admin-port", "engine-port")]
    command = [sys.executable, "-P", "-m", "specpilot.cli", "up", *ports, *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert f"{flags[0]}:" in done.stderr
    assert done.stderr.count("\n") == 1
