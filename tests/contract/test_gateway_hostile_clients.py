"""Clients that mean no good, or behave as if: what they get, and what it costs the gateway."""

import asyncio
import io
import threading
from contextlib import suppress

import pytest

from specpilot.gateway.telemetry.access_log import AccessLog
from tests.contract.conftest import StartGateway
from tests.support.gateway_client import Client, request
from tests.support.gateway_server import GatewayThread, eventually
from tests.support.scripted_engine import ScriptedEngine


async def test_an_upgrade_hides_no_length_behind_too_many_headers(
    engine: ScriptedEngine, gateway: GatewayThread
) -> None:
    """What is dropped of such a head must not make its body the next request on the connection."""
    hidden = request({"model": "tiny", "prompt": "smuggled"}, path="/v1/completions")
    headers = "connection: upgrade\r\nupgrade: h2c\r\n" + "a: b\r\n" * 125
    async with await Client.connect(gateway.port, request(hidden, headers=headers)) as client:
        answer = await client.answer()
        assert (answer.status, answer.code) == (431, "head_too_large")
        assert await client.is_closed()
    assert engine.seen == []


async def test_connections_are_bounded_in_number(engine: ScriptedEngine, start_gateway: StartGateway) -> None:
    gateway = await start_gateway(engine, max_connections=2)
    async with await Client.connect(gateway.port) as first, await Client.connect(gateway.port) as second:
        for client in (first, second):
            client.send(request())
            assert (await client.answer()).status == 200
        async with await Client.connect(gateway.port) as third:
            answer = await third.answer()
        assert (answer.status, answer.code, answer.headers["connection"]) == (503, "connections_full", "close")
        first.send(request())
        assert (await first.answer()).status == 200


async def test_a_body_of_a_byte_at_a_time_ends(engine: ScriptedEngine, start_gateway: StartGateway) -> None:
    gateway = await start_gateway(engine, body_timeout_s=0.4)
    async with await Client.connect(gateway.port) as client:
        client.send(b"POST /v1/completions HTTP/1.1\r\nhost: g\r\ncontent-length: 900000\r\n\r\n")

        async def drip() -> None:
            while True:
                client.send(b" ")
                await asyncio.sleep(0.02)

        dripping = asyncio.create_task(drip())
        answer = await client.answer()
        dripping.cancel()
    assert (answer.status, answer.code) == (408, "request_timeout")
    assert "--body-timeout-s" in answer.json["error"]["message"]


class _FullDisk(io.BytesIO):
    is_full = False
    writes = 0

    def write(self, data: object) -> int:
        self.writes += 1
        if self.is_full:
            raise OSError(28, "No space left on device")
        return super().write(data)  # type: ignore[arg-type]


async def test_the_access_log_goes_on_after_a_write_that_failed() -> None:
    stream = _FullDisk()
    log = AccessLog(stream)
    for at, stream.is_full in enumerate((False, True, False)):
        log.add(b'{"at":%d}' % at)
        log.flush()
        await eventually(lambda at=at: stream.writes == at + 1)  # type: ignore[misc]
    log.close()
    assert stream.getvalue() == b'{"at":0}\n{"at":2}\n'
    assert log.dropped == 1


READ = 256_000
REFUSED = b"GET /score HTTP/1.1\r\nhost: g\r\n"


@pytest.mark.parametrize(
    "asked",
    [REFUSED + b"\r\n", REFUSED + b"connection: upgrade\r\nupgrade: x\r\n\r\n"],
    ids=["refused", "to change protocols"],
)
async def test_a_read_full_of_requests_is_answered_in_order_and_between_others(
    gateway: GatewayThread, asked: bytes
) -> None:
    count = READ // len(asked)
    named = asked.removesuffix(b"\r\n") + b"x-request-id: %d\r\n\r\n"
    are_sent = threading.Event()
    async with await Client.connect(gateway.port) as hostile, await Client.connect(gateway.port) as other:
        gateway.context._loop.call_soon_threadsafe(are_sent.wait)  # one pass of the loop reads from both
        hostile.send(b"".join(named % at for at in range(count)))
        other.send(REFUSED + b"x-request-id: other\r\n\r\n")
        are_sent.set()
        assert (await other.answer()).status == 405
        with suppress(asyncio.IncompleteReadError):  # of one that reads too slowly the rest is ignored
            for at in range(count):
                answer = await hostile.answer()
                assert (answer.status, answer.headers["x-request-id"]) == (405, str(at))
        assert at > 1000
    await eventually(lambda: len(gateway.log_lines()) > at)
    answered = [line["request_id"] for line in gateway.log_lines()]
    assert answered.index("other") < 1000
