"""Bodies that are large, or many at once: what they cost others, and when they are refused."""

import asyncio
import http.client
import json
import threading

import pytest

from tests.contract.conftest import StartGateway
from tests.support.gateway_client import Client, call, request
from tests.support.gateway_server import GatewayThread, LoopWatch, eventually
from tests.support.scripted_engine import HANG, ScriptedEngine, completion, reply

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\ncontent-length: %d\r\n\r\n"


async def test_a_body_of_millions_of_values_is_refused_before_it_is_whole(
    engine: ScriptedEngine, gateway: GatewayThread
) -> None:
    answer = await call(gateway.port, HEAD % 15_000_000 + b'{"model":"tiny","x":[' + b"[]," * 300_000)
    assert (answer.status, answer.code) == (413, "body_too_complex")
    assert engine.seen == []
    await eventually(lambda: gateway.context.body_bytes == 0)


async def test_a_large_body_arrives_as_it_was_sent(engine: ScriptedEngine, gateway: GatewayThread) -> None:
    body = {
        "image": "A" * 5_000_000,
        "vllm_xargs": {"k": [1], "traffic_class": "mine"},
        "messages": [{"role": "user", "content": "é" * 100_000 + '\n"'}],
        "model": "tiny",
    }
    answer = await call(gateway.port, request(json.dumps(body, ensure_ascii=False).encode()))
    assert answer.status == 200
    assert engine.seen[0].json == body
    await eventually(lambda: gateway.context.body_bytes == 0)


async def test_bodies_have_a_budget(engine: ScriptedEngine, start_gateway: StartGateway) -> None:
    engine.scripts = [[HANG]]
    engine.script = [reply(completion())]
    gateway = await start_gateway(engine, max_bodies_bytes=100_000)
    big = request({"model": "tiny", "prompt": "x" * 60_000})
    async with await Client.connect(gateway.port, big):
        await engine.wait_seen(1)
        answer = await call(gateway.port, big)
        assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "bodies_full", "1")
        assert gateway.context.metrics.refusals == {"bodies_full": 1}
        assert (await call(gateway.port)).status == 200
    await eventually(lambda: gateway.context.body_bytes == 0)
    assert (await call(gateway.port, big)).status == 200


async def test_a_body_is_no_longer_counted_once_its_answer_has_begun(
    engine: ScriptedEngine, gateway: GatewayThread
) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{"
    go_on = asyncio.Event()
    engine.script = [head, go_on, b'"a": 123}']
    async with await Client.connect(gateway.port, request({"model": "tiny", "prompt": "x" * 60_000})) as client:
        await client.reader.readuntil(b"\r\n\r\n")
        await eventually(lambda: gateway.context.body_bytes == 0)
        go_on.set()


@pytest.mark.parametrize("is_chunked", [False, True])
async def test_20_mb_are_refused_and_the_client_can_read_why(
    engine: ScriptedEngine, gateway: GatewayThread, is_chunked: bool
) -> None:
    body = b'{"model":"tiny","messages":"' + b"x" * 20_000_000 + b'"}'
    sent = request(body)
    if is_chunked:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        sent = head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    answer = await call(gateway.port, sent)
    assert (answer.status, answer.code) == (413, "body_too_large")
    assert engine.seen == []


async def test_16_mb_pass_and_stall_nobody(engine: ScriptedEngine, gateway: GatewayThread) -> None:
    body = b'{"model":"tiny","messages":"' + b"x" * 16_000_000 + b'","priority":5}'
    is_over = threading.Event()

    def others() -> None:  # on a thread: this loop is busy with 16 MB itself
        connection = http.client.HTTPConnection("127.0.0.1", gateway.port)
        while not is_over.is_set():
            connection.request("GET", "/health")
            assert connection.getresponse().read() == b'{"status":"ok"}'
        connection.close()

    with LoopWatch(gateway) as watch:
        task = asyncio.create_task(asyncio.to_thread(others))
        answer = await call(gateway.port, request(body))
        is_over.set()
        await task
    assert answer.status == 200
    assert engine.seen[0].body == body.replace(b":5}", b":0}")
    assert watch.longest_s < 0.1  # ten times what it takes
