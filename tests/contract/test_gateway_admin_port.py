"""The operators' port of several workers: one port, one sum, whichever worker answers and whichever died."""

import asyncio
import os
import re
import signal

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.contract.conftest import StartProgram
from tests.support.commands import run
from tests.support.gateway_client import Answer, call, request
from tests.support.gateway_server import GatewayProgram, eventually
from tests.support.gateway_workers import children
from tests.support.patience import PATIENCE_S

REQUESTS = "specpilot_gateway_requests_total"
METRICS = request(path="/metrics", method="GET")
CONFIG = request(path="/admin/config", method="GET", headers="authorization: Bearer t\r\n")


def admin_ports(program: GatewayProgram) -> list[int]:
    found = (re.search(r"pages for operators on http://127.0.0.1:(\d+)", line) for line in program.errors)
    return [int(item[1]) for item in found if item is not None]


@pytest.fixture
async def program(start_workers: StartProgram) -> GatewayProgram:
    started = await start_workers("--admin-port", "0", "--admin-token", "t")
    await eventually(lambda: len(admin_ports(started)) == 2)
    return started


async def test_its_credentials_are_read_as_on_the_other_port(program: GatewayProgram) -> None:
    for lines in ("x-api-key: t \r\n", "authorization: Bearer \r\napi-key: t\r\n"):
        sent = request(path="/admin/config", method="GET", headers=lines)
        assert (await call(admin_ports(program)[0], sent)).status == 200


async def at_many_workers(port: int, asked: bytes) -> list[Answer]:
    """Ask on many connections; that all reach one of two workers happens once in 2,048 times."""
    return await asyncio.gather(*(call(port, asked) for _ in range(12)))


def value(answer: Answer, name: str) -> float:
    assert answer.status == 200
    families = text_string_to_metric_families(answer.body.decode())
    return sum(sample.value for family in families for sample in family.samples if sample.name == name)


async def test_pages_and_sums_are_those_of_all_workers(program: GatewayProgram) -> None:
    port, other = admin_ports(program)
    assert port == other != program.port
    assert {answer.status for answer in await at_many_workers(program.port, METRICS)} == {404}
    assert {answer.status for answer in await at_many_workers(program.port, CONFIG)} == {404}
    assert {answer.status for answer in await at_many_workers(port, CONFIG)} == {200}
    await at_many_workers(program.port, request())
    async with asyncio.timeout(PATIENCE_S):  # the workers leave their counts once a second
        while {value(answer, REQUESTS) for answer in await at_many_workers(port, METRICS)} != {12}:
            pass
    os.kill(children(program)[0], signal.SIGKILL)
    await eventually(lambda: any("worker 3 serves" in line for line in program.errors))
    assert {value(answer, REQUESTS) for answer in await at_many_workers(port, METRICS)} == {12}


async def test_a_second_gateway_does_not_take_a_port_that_the_workers_of_another_share(program: GatewayProgram) -> None:
    command = ("gateway", "--engine", "http://x", "--workers", "2", "--port")
    for flag, ports in (("--port", [program.port]), ("--admin-port", [0, "--admin-port", admin_ports(program)[0]])):
        done = await asyncio.to_thread(run, *command, *map(str, ports))
        assert done.returncode == 2
        assert f"{flag}: cannot listen" in done.stderr
