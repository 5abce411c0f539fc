"""Requests that a client sends before it has the answer to the one before: each answer in order, one at a time."""

import asyncio
import json

import pytest

from specpilot.gateway.relay.client_reader import AHEAD_BYTES
from tests.contract.conftest import StartGateway
from tests.support.gateway_client import Client, request
from tests.support.gateway_server import GatewayThread, eventually
from tests.support.scripted_engine import HANG, ScriptedEngine, completion, reply


async def test_a_bad_second_request_does_not_spoil_the_first(engine: ScriptedEngine, gateway: GatewayThread) -> None:
    engine.script = [0.05, reply(completion())]
    async with await Client.connect(gateway.port) as client:
        client.send(request() + b"POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n")
        assert (await client.answer()).body == completion()
        assert (await client.answer()).code == "bad_request"
        assert await client.is_closed()


@pytest.mark.parametrize(
    ("rest", "status", "code"),
    [
        (b"zz\r\n", 400, "bad_request"),
        (b"2\r\n{}\r\n0\r\nx: y\r\n z\r\n\r\n", 400, "bad_request"),
    ],
)
async def test_what_goes_wrong_within_a_request_that_waits_is_its_own_answer_in_order(
    engine: ScriptedEngine, gateway: GatewayThread, rest: bytes, status: int, code: str
) -> None:
    engine.script = [0.1, reply(completion())]
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-request-id: %s\r\ntransfer-encoding: chunked\r\n\r\n"
    async with await Client.connect(gateway.port, request() * 2 + head % b"mine" + rest) as client:
        for _ in range(2):
            assert (await client.answer()).body == completion()
        answer = await client.answer()
        assert (answer.status, answer.code) == (status, code)
        assert answer.headers["x-request-id"] == "mine"
        assert await client.is_closed()
    assert len(engine.seen) == 2
    lines = await eventually(lambda: found if len(found := gateway.log_lines()) == 3 else None)
    assert [line["status"] for line in lines] == [200, 200, status]


@pytest.mark.parametrize("wait_s", [0.0, 0.02], ids=["in one read", "later"])
async def test_more_ahead_than_is_kept_ends_the_connection_after_the_answer_under_way(
    engine: ScriptedEngine, gateway: GatewayThread, wait_s: float
) -> None:
    engine.script = [0.1, reply(completion())]
    large = request({"model": "tiny", "prompt": "x" * AHEAD_BYTES})
    async with await Client.connect(gateway.port, request()) as client:
        await asyncio.sleep(wait_s)
        client.send(large)
        assert (await client.answer()).body == completion()
        assert await client.is_closed()
    assert len(engine.seen) == 1


async def test_more_ahead_than_is_kept_ends_the_connection_of_a_client_that_reads_late(
    engine: ScriptedEngine, gateway: GatewayThread
) -> None:
    body = b'"' + b"x" * 8_000_000 + b'"'
    engine.script = [reply(body)]
    async with await Client.connect(gateway.port) as client:
        client.writer.transport.pause_reading()
        client.send(request())
        await eventually(lambda: any(one.is_stalled for one in [*gateway.context.connections]))
        client.send(request() * 1000)
        await asyncio.sleep(0.1)
        client.writer.transport.resume_reading()
        assert (await client.answer()).body == body
        assert await client.is_closed()
    assert len(engine.seen) == 1


async def test_two_requests_in_chunks_are_two_wherever_they_are_cut(
    engine: ScriptedEngine, gateway: GatewayThread
) -> None:
    engine.choose = lambda seen: [0.001, reply(seen.body)]
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    bodies = [b'{"model":"tiny","at":%d}' % at for at in range(2)]
    sent = b"".join(b"%s%x\r\n%s\r\n0\r\nx: y\r\n\r\n" % (head, len(body), body) for body in bodies)
    async with await Client.connect(gateway.port) as client:
        for cut in range(1, len(sent)):
            client.send(sent[:cut])
            await asyncio.sleep(0.002)
            client.send(sent[cut:])
            assert [(await client.answer()).body for _ in bodies] == bodies


async def test_a_large_body_for_the_app_behind_a_request_hides_no_client_that_leaves(
    engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    engine.script = [HANG]
    gateway = await start_gateway(engine, admin_token="t")
    async with await Client.connect(gateway.port) as client:
        client.send(request() + request(b"x" * 1_000_000, path="/admin/config"))
        await engine.wait_seen(1)
        await client.writer.drain()
    await engine.seen[0].until_closed()
    assert gateway.context.metrics.disconnects == {"wait": 1}


async def test_a_large_body_for_the_app_is_read_over_and_the_next_request_answered(
    engine: ScriptedEngine, gateway: GatewayThread
) -> None:
    engine.script = [0.05, reply(completion())]
    async with await Client.connect(gateway.port) as client:
        client.send(request() + request(b"x" * 60_000, path="/health", method="GET") + request())
        assert (await client.answer()).body == completion()
        assert (await client.answer()).json == {"status": "ok"}
        assert (await client.answer()).body == completion()


async def test_a_body_that_comes_late_behind_requests_for_the_app_is_read(gateway: GatewayThread) -> None:
    health, whole = request(b"", path="/health", method="GET"), request()
    async with await Client.connect(gateway.port, health * 3 + whole[:-10]) as client:
        for _ in range(3):
            assert (await client.answer()).json == {"status": "ok"}
        await asyncio.sleep(0.05)
        client.send(whole[-10:])
        assert (await client.answer()).body == completion()


async def test_pipelined_requests_are_answered_in_order(engine: ScriptedEngine, gateway: GatewayThread) -> None:
    engine.choose = lambda seen: [0.05 if b"slow" in seen.body else 0, reply(seen.json["user"].encode())]
    async with await Client.connect(gateway.port) as client:
        users = ["slow 1", "2", "slow 3", "4"]
        calls = [request({"model": "tiny", "user": user}) for user in users]
        health = request(path="/health", method="GET")
        client.send(calls[0] + health + calls[1] + request(b"{") + calls[2] + calls[3])
        answers = [(await client.answer()).body for _ in range(6)]
    assert [answers[at].decode() for at in (0, 2, 4, 5)] == users
    assert json.loads(answers[1]) == {"status": "ok"}
    assert json.loads(answers[3])["error"]["code"] == "invalid_json"
