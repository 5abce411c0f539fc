"""Requests that wait for an engine with room while the gateway ends."""

import asyncio
import re
import signal

from tests.contract.conftest import StartProgram
from tests.contract.test_gateway_queue import Gates
from tests.support.gateway_client import call, request
from tests.support.gateway_server import GatewayProgram
from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import HANG, ScriptedEngine


async def queue_length(program: GatewayProgram) -> int:
    page = (await call(program.port, request(path="/metrics", method="GET"))).body.decode()
    found = re.search(r"^specpilot_gateway_queue_length\{.*\} (\S+)$", page, re.MULTILINE)
    return 0 if found is None else int(float(found[1]))


async def until_two_wait(program: GatewayProgram) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await queue_length(program) != 2:
            pass


async def test_requests_that_wait_are_served_while_the_gateway_drains(
    engine: ScriptedEngine, start_program: StartProgram
) -> None:
    gates = Gates(engine)
    program = await start_program("--engine-capacity", "1")
    calls = [asyncio.create_task(call(program.port)) for _ in range(3)]
    await until_two_wait(program)
    program.process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(PATIENCE_S):
        while not calls[-1].done():  # until the drain begins, one more waits
            if await queue_length(program) == len(calls) - 1:
                calls.append(asyncio.create_task(call(program.port)))
    assert (await calls.pop()).code == "draining"
    await gates.open(0, len(calls))
    assert {answer.status for answer in await asyncio.gather(*calls)} == {200}
    assert await program.end() == 0


async def test_the_drain_time_out_ends_those_who_wait_without_sending_them(
    engine: ScriptedEngine, start_program: StartProgram
) -> None:
    engine.script = [HANG]
    program = await start_program("--engine-capacity", "1", "--drain-timeout-s", "0.5")
    calls = [asyncio.create_task(call(program.port)) for _ in range(3)]
    await until_two_wait(program)
    program.process.send_signal(signal.SIGTERM)
    assert {(await item).code for item in calls} == {"draining"}
    assert await program.end() == 0
    assert len(engine.seen) == 1
