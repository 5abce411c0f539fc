"""How several workers end: signals to the parent or to all, draining, a parent that is killed."""

import asyncio
import os
import signal

from tests.contract.conftest import StartProgram
from tests.support.gateway_client import STREAM, Client, call, request
from tests.support.gateway_server import GatewayProgram, eventually
from tests.support.gateway_workers import children, is_alive, lines, worker_of
from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import LAST_CHUNK, SSE_HEAD, ScriptedEngine, chunk, event


async def all_drain(program: GatewayProgram) -> None:
    """Wait until every worker says so, or has ended; one in 2^12 times only one of two was asked."""

    async def ready() -> int:
        try:
            return (await call(program.port, request(path="/ready", method="GET"))).status
        except (ConnectionError, asyncio.IncompleteReadError):
            return 503  # a worker without requests ended while it was asked

    async with asyncio.timeout(PATIENCE_S):
        while await asyncio.gather(*(ready() for _ in range(12))) != [503] * 12:
            pass


async def test_sigterm_drains_every_worker(engine: ScriptedEngine, start_workers: StartProgram) -> None:
    goes_on = asyncio.Event()
    engine.script = [SSE_HEAD, chunk(event("a")), goes_on, chunk(event("b")), LAST_CHUNK]
    program = await start_workers("--drain-grace-s", "1")
    workers = children(program)

    async def stream_on() -> str:
        async with await Client.connect(program.port, request(STREAM)) as client:
            answer = await client.answer()
            assert answer.is_whole
            assert answer.body == event("a") + event("b")
            return worker_of(answer.headers["x-request-id"])

    streams = [asyncio.create_task(stream_on()) for _ in range(24)]
    await engine.wait_seen(24)
    program.process.send_signal(signal.SIGTERM)
    await all_drain(program)
    goes_on.set()
    assert len(set(await asyncio.gather(*streams))) == 2
    assert await program.end() == 0
    assert not any(map(is_alive, workers))
    assert not lines(program, "WARNING")


async def test_draining_workers_say_so_and_serve_and_a_second_signal_ends_all_at_once(
    engine: ScriptedEngine, start_workers: StartProgram
) -> None:
    engine.scripts = [[SSE_HEAD, chunk(event("a")), 60.0]]
    program = await start_workers("--drain-grace-s", "30")
    async with await Client.connect(program.port) as client:
        assert (await call(program.port, request(path="/ready", method="GET"))).status == 200
        client.send(request(STREAM))
        await engine.wait_seen(1)
        program.process.send_signal(signal.SIGINT)
        await all_drain(program)
        assert (await call(program.port)).status == 200
        await asyncio.sleep(0.6)  # what follows at once is the same signal, heard twice
        program.process.send_signal(signal.SIGINT)
        assert await program.end() == 0


async def test_a_signal_to_all_processes_at_once_drains_like_one_to_the_parent(
    engine: ScriptedEngine, start_workers: StartProgram
) -> None:
    goes_on = asyncio.Event()
    engine.script = [SSE_HEAD, chunk(event("a")), goes_on, chunk(event("b")), LAST_CHUNK]
    program = await start_workers()
    async with await Client.connect(program.port, request(STREAM)) as client:
        await engine.wait_seen(1)
        for pid in (*children(program), program.process.pid):
            os.kill(pid, signal.SIGTERM)
        await all_drain(program)
        goes_on.set()
        answer = await client.answer()
    assert answer.is_whole
    assert event("b") in answer.body
    assert await program.end() == 0


async def test_no_connection_waits_for_a_worker_that_has_ended(
    engine: ScriptedEngine, start_workers: StartProgram
) -> None:
    goes_on = asyncio.Event()
    engine.script = [SSE_HEAD, chunk(event("a")), goes_on, LAST_CHUNK]
    program = await start_workers("--drain-grace-s", "0", "--drain-timeout-s", "3600")
    async with await Client.connect(program.port, request(STREAM)) as client:
        await engine.wait_seen(1)
        program.process.send_signal(signal.SIGTERM)
        await eventually(lambda: len(children(program)) == 1)
        await all_drain(program)
        goes_on.set()
        assert (await client.answer()).is_whole
    assert await program.end() == 0


async def test_workers_do_not_outlive_their_parent(start_workers: StartProgram) -> None:
    program = await start_workers()
    workers = children(program)
    program.process.kill()
    await eventually(lambda: not any(map(is_alive, workers)))
