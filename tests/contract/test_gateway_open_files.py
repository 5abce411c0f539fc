"""A gateway whose open files run out: what its clients and its engines have of it."""

import itertools
import resource
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from specpilot.gateway.engines import probe
from specpilot.gateway.engines.fetch import fetch
from specpilot.gateway.engines.out_of_files import OutOfFilesError
from tests.contract.conftest import StartGateway, StartProgram
from tests.support.gateway_client import Client, call, request
from tests.support.gateway_server import eventually
from tests.support.scripted_engine import ScriptedEngine


def first_free(pid: int) -> int:
    """The lowest number of a file descriptor that the process does not use."""
    used = {int(item.name) for item in Path(f"/proc/{pid}/fd").iterdir()}
    return next(number for number in itertools.count() if number not in used)


async def test_no_engine_is_blamed_for_files_that_have_run_out(
    engine: ScriptedEngine, start_program: StartProgram
) -> None:
    program = await start_program("--show-engine", "--engine-keep-alive-s", "0")
    pid = program.process.pid
    async with await Client.connect(program.port, request(path="/health", method="GET")) as client:
        assert (await client.answer()).status == 200
        await eventually(lambda: not engine.open)  # the connection of the first look at it
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        assert limits[0] == limits[1]
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (first_free(pid), limits[1]))
        client.send(request())
        answer = await client.answer()
        assert (answer.status, answer.code) == (503, "connections_full")
        assert "ulimit -n" in answer.json["error"]["message"]
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        client.send(request())
        assert (await client.answer()).status == 200
        client.send(request(path="/metrics", method="GET"))
        text = (await client.answer()).body.decode()
    assert "specpilot_gateway_upstream_errors_total{" not in text
    assert f'specpilot_gateway_engine_ejected{{engine="127.0.0.1:{engine.port}"}} 0.0' in text


async def test_clients_are_bounded_by_the_files_that_may_be_open(start_program: StartProgram) -> None:
    program = await start_program("--max-connections", "1000000000")
    assert (await call(program.port)).status == 200
    assert any("ulimit -n" in line for line in program.errors)


async def test_a_probe_without_a_file_ejects_nobody(
    engine: ScriptedEngine, start_gateway: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def connect() -> None:
        raise OutOfFilesError(24, "Too many open files")

    without = cast("Any", SimpleNamespace(pool=SimpleNamespace(connect=connect)))
    with pytest.raises(OutOfFilesError):
        await fetch(without, b"/", b"*/*", 1, 1.0)

    async def fetch_models(*_: object) -> None:
        await connect()

    gateway = await start_gateway(engine)
    [one] = gateway.context.fleet.engines.values()
    monkeypatch.setattr(probe, "fetch_models", fetch_models)
    one.probed_at = -100.0
    await eventually(lambda: one.probe_error)
    assert not one.outlier_detection.is_ejected
    assert one.outlier_detection.probe_timeouts == 0
