"""The program: how it starts, how it refuses to, how it ends."""

import asyncio
import signal
import socket
import threading
from pathlib import Path

import pytest

from specpilot.gateway.app import create_server
from specpilot.gateway.process.start_error import StartError
from specpilot.gateway.relay.context import SWEEP_S
from specpilot.gateway.settings import GatewaySettings
from specpilot.policy.clock import SystemClock
from tests.contract.conftest import StartGateway, StartProgram
from tests.support.gateway_client import STREAM, Client, call, request
from tests.support.gateway_server import eventually
from tests.support.hand_clock import Clock
from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import LAST_CHUNK, SSE_HEAD, ScriptedEngine, chunk, completion, event, reply


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("{}", "must be a JSON list"),
        ('[{"key_id":"a","key":"sk-secret","color":1}]', "[0].color"),
        ('[{"key_id":"a","key":"sk-secret","tokens_per_minute":"many"}]', "[0].tokens_per_minute"),
    ],
)
def test_a_bad_keys_file_is_named_with_its_faults(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "keys.json"
    path.write_text(text)
    settings = GatewaySettings(port=0, engine=("http://x",), api_keys_file=str(path))
    with pytest.raises(StartError) as caught:
        create_server(settings, SystemClock(), None)
    assert said in str(caught.value)
    assert "sk-secret" not in str(caught.value)


async def test_sigterm_lets_streams_finish_and_refuses_new_ones(
    engine: ScriptedEngine, start_program: StartProgram
) -> None:
    goes_on = asyncio.Event()
    engine.script = [SSE_HEAD, chunk(event("a")), goes_on, chunk(event("b")), LAST_CHUNK]
    program = await start_program()
    async with await Client.connect(program.port) as stream, await Client.connect(program.port) as idle:
        stream.send(request(STREAM))
        await engine.wait_seen(1)
        program.process.send_signal(signal.SIGTERM)
        engine.script = [reply(completion())]
        async with asyncio.timeout(PATIENCE_S):
            while (refused := await call(program.port)).status == 200:  # the signal has yet to arrive
                pass
        assert (await call(program.port, request(path="/ready", method="GET"))).json == {"status": "draining"}
        assert (await call(program.port, request(path="/health", method="GET"))).status == 200
        assert (refused.status, refused.code) == (503, "draining")
        assert refused.headers["retry-after"] == "1"
        idle.send(request())
        assert (await idle.answer()).headers["connection"] == "close"
        goes_on.set()
        answer = await stream.answer()
        assert answer.is_whole
        assert answer.body == event("a") + event("b")
    assert await program.end() == 0
    assert any('"status":200' in line for line in program.errors)


async def test_the_drain_time_out_ends_what_does_not_finish(
    engine: ScriptedEngine, start_program: StartProgram
) -> None:
    engine.script = [SSE_HEAD, chunk(event("a")), 60.0]
    program = await start_program("--drain-timeout-s", "0.5")
    async with await Client.connect(program.port, request(STREAM)):
        await engine.wait_seen(1)
        program.process.send_signal(signal.SIGTERM)
        assert await program.end() == 0
    await engine.seen[0].until_closed()


async def test_the_drain_grace_still_serves(engine: ScriptedEngine, start_gateway: StartGateway, clock: Clock) -> None:
    gateway = await start_gateway(engine, clock=clock, drain_grace_s=3.0)
    async with await Client.connect(gateway.port) as kept, await Client.connect(gateway.port) as idle:
        for client in (kept, idle):
            client.send(request())
            assert "connection" not in (await client.answer()).headers
        await gateway.on_loop(gateway.server.handle_exit, signal.SIGINT, None)
        await eventually(lambda: gateway.context.is_draining)
        ready = await call(gateway.port, request(path="/ready", method="GET"))
        assert (ready.status, ready.headers["connection"]) == (503, "close")
        kept.send(request())  # a balancer of connections would bring its requests here for as long as it stands
        answer = await kept.answer()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        clock.at += 2.9
        assert await idle.is_closed()
        assert (await call(gateway.port)).status == 200
        assert gateway._thread.is_alive()
        clock.at += 0.2
        await asyncio.to_thread(gateway.join)


async def test_the_access_log_can_be_left_out(start_program: StartProgram) -> None:
    program = await start_program("--no-access-log")
    assert (await call(program.port)).status == 200
    program.process.send_signal(signal.SIGTERM)
    assert await program.end() == 0
    assert not any(line.startswith("{") for line in program.errors)


async def test_a_process_that_stood_still_reads_what_came_before_it_judges_time_outs(
    engine: ScriptedEngine, start_gateway: StartGateway, clock: Clock
) -> None:
    may_answer, stands, may_go_on = asyncio.Event(), threading.Event(), threading.Event()
    engine.script = [may_answer, SSE_HEAD, chunk(event("a")), LAST_CHUNK]
    gateway = await start_gateway(engine, clock=clock, first_byte_timeout_s=1.0)
    async with await Client.connect(gateway.port, request(STREAM)) as client:
        await engine.wait_seen(1)
        woken, waker = socket.socketpair()
        loop = gateway.context._loop

        def stand_still() -> None:
            loop.remove_reader(woken)
            stands.set()
            may_go_on.wait(PATIENCE_S)

        # By a socket, as most work comes: then the timers that are due run before other sockets are read.
        loop.call_soon_threadsafe(loop.add_reader, woken, stand_still)
        waker.send(b"x")
        await asyncio.to_thread(stands.wait)
        may_answer.set()
        await eventually(lambda: engine.is_silent)
        clock.at += 1.5
        await asyncio.sleep(2 * SWEEP_S)  # so that its timer is due
        may_go_on.set()
        answer = await client.answer()
        assert (answer.status, answer.body) == (200, event("a"))
    woken.close()
    waker.close()
