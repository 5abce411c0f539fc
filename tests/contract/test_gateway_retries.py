"""What an engine does not answer goes to another one, within a budget; and connections that the engine closed."""

import asyncio
import gc
import json

import pytest

from specpilot.gateway.routing.prefix import points_of
from specpilot.gateway.wire.request_facts import read_facts
from tests.contract.conftest import StartGateway
from tests.support.gateway_client import PATH, STREAM, Client, call, request
from tests.support.gateway_server import eventually
from tests.support.hand_clock import Clock
from tests.support.scripted_engine import (
    CLOSE,
    HANG,
    RESET,
    SSE_HEAD,
    Act,
    Script,
    ScriptedEngine,
    chunk,
    completion,
    event,
    reply,
    requests_of,
)

OVERLOADED = reply(
    b'{"error":{"message":"full","type":"overloaded","param":null,"code":503}}', "503 Service Unavailable"
)
ERROR_CUT_OFF: Script = [b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 99\r\n\r\n{", CLOSE]


def parsed_bodies(marker: str) -> int:
    """How many parsed request bodies with the field `marker` are in memory."""
    return sum(type(item) is dict and marker in item and "model" in item for item in gc.get_objects())


@pytest.mark.usefixtures("empty_heap")
@pytest.mark.parametrize("is_begun", [False, True])
async def test_a_body_is_not_kept_parsed_while_its_engine_works(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway, is_begun: bool
) -> None:
    script: Script = [SSE_HEAD, chunk(event("a")), HANG] if is_begun else [HANG]
    engine.script = other_engine.script = script
    gateway = await start_gateway(engine, other_engine)
    async with await Client.connect(gateway.port, request({**STREAM, "x-marked": [1]})) as client:
        await eventually(lambda: requests_of(engine, other_engine))
        if is_begun:
            assert event("a") in await client.reader.readuntil(event("a"))
        assert parsed_bodies("x-marked") == 0


@pytest.mark.parametrize("script", [[OVERLOADED], [CLOSE], ERROR_CUT_OFF], ids=["503", "closed", "cut off"])
async def test_a_retry_goes_by_the_same_session_and_sends_the_same_bytes(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway, script: Script
) -> None:
    engine.script = other_engine.script = script
    gateway = await start_gateway(engine, other_engine)
    body = {**STREAM, "user": "u", "prompt": "x" * 100_000, "stream_options": {"include_usage": True}}
    assert (await call(gateway.port, request(body))).status in (502, 503)
    counts = gateway.context.fleet.chooser.counts
    assert {rule: count for rule, count in counts.items() if count} == {"session": 1, "session_spilled": 1}
    for seen in (*engine.seen, *other_engine.seen):
        assert seen.json == body
    assert requests_of(engine, other_engine) == 2


async def test_when_all_engines_refuse_their_answer_is_passed_on(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    engine.script = other_engine.script = [OVERLOADED]
    gateway = await start_gateway(engine, other_engine)
    answer = await call(gateway.port)
    assert answer.status == 503
    assert answer.json["error"]["message"] == "full"
    assert answer.headers["retry-after"] == "1"
    assert requests_of(engine, other_engine) == 2
    assert gateway.context.metrics.upstream_errors == {"status_503": 2}


async def test_a_retry_that_the_budget_refuses_is_neither_counted_nor_remembered(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    engine.script = other_engine.script = [OVERLOADED]
    gateway = await start_gateway(engine, other_engine, retry_ratio=0)
    bodies = [{"model": "tiny", "messages": [{"role": "user", "content": f"{at}" * 2000}]} for at in range(100, 125)]
    async with await Client.connect(gateway.port) as client:
        for body in bodies:
            client.send(request(body))
            assert (await client.answer()).status == 503
    chooser = gateway.context.fleet.chooser
    assert gateway.context.metrics.retries < len(bodies)
    assert sum(chooser.counts.values()) == len(engine.seen) + len(other_engine.seen)
    for body in bodies:
        got = {
            f"127.0.0.1:{one.port}"
            for one in (engine, other_engine)
            if any(seen.json["messages"] == body["messages"] for seen in one.seen)
        }
        point = points_of(read_facts(PATH, json.dumps(body).encode()))[-1]
        assert set(chooser.prefixes.holders(point)) == got


async def test_the_requests_of_a_dying_engine_go_elsewhere_however_many_they_are(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    gateway = await start_gateway(engine, other_engine)
    async with await Client.connect(gateway.port) as client:
        for _ in range(400):
            client.send(request())
            await client.answer()
    engine.seen.clear()
    other_engine.seen.clear()
    may_answer = asyncio.Event()
    engine.script, other_engine.script = [HANG], [may_answer, reply(completion())]
    clients = [await Client.connect(gateway.port) for _ in range(60)]
    for client in clients:
        client.send(request())
    await eventually(lambda: requests_of(engine, other_engine) == 60)
    assert len(engine.seen) >= 25
    await engine.stop()
    may_answer.set()
    for client in clients:
        assert (await client.answer()).status == 200
        client.close()
    assert gateway.context.metrics.retries >= 25


async def test_a_kept_connection_that_the_engine_closed_is_replaced(
    engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    gateway = await start_gateway(engine, engine_keep_alive_s=60)
    engine.scripts = [[reply(completion())], [CLOSE], [reply(completion("again"))]]
    assert (await call(gateway.port)).status == 200
    # The second request goes out on the kept connection, which the engine closes without an answer.
    answer = await call(gateway.port)
    assert answer.body == completion("again")
    assert not gateway.context.metrics.upstream_errors


@pytest.mark.parametrize("end", [CLOSE, RESET])
async def test_a_kept_connection_that_breaks_later_is_the_engines_failure(
    engine: ScriptedEngine, start_gateway: StartGateway, clock: Clock, end: Act
) -> None:
    gateway = await start_gateway(engine, clock=clock, engine_keep_alive_s=60)
    breaks = asyncio.Event()
    engine.scripts = [[reply(completion())], [breaks, end], [reply(completion("again"))]]
    assert (await call(gateway.port)).status == 200
    answered = asyncio.create_task(call(gateway.port))
    await engine.wait_seen(2)
    clock.at += 1.2
    breaks.set()
    answer = await answered
    assert (answer.status, answer.code) == (502, "bad_engine_response")
    assert len(engine.seen) == 2
    assert engine.seen[1].connection == engine.seen[0].connection
    assert gateway.context.metrics.retries == 0
    assert gateway.context.metrics.upstream_errors == {"closed" if end is CLOSE else "reset": 1}
