"""Errors that engines answer: what is one, which pass as they came, and which get the envelope."""

import asyncio
import json
from itertools import product
from typing import Any, cast

import pytest

from tests.contract.conftest import StartGateway
from tests.support.gateway_client import STREAM, call, request
from tests.support.gateway_server import GatewayThread
from tests.support.scripted_engine import (
    DONE,
    LAST_CHUNK,
    SSE_HEAD,
    Script,
    ScriptedEngine,
    chunk,
    event,
    reply,
    requests_of,
)
from tests.support.tcp_server import serving


async def test_an_engines_429_says_when_to_come_back(engine: ScriptedEngine, gateway: GatewayThread) -> None:
    body = b'{"error":{"message":"slowly","type":"rate_limit_error","param":null,"code":429}}'
    engine.scripts = [[reply(body, "429 Too Many Requests", extra=extra)] for extra in ("", "Retry-After: 17\r\n")]
    for wanted in ("1", "17"):
        answer = await call(gateway.port)
        assert (answer.status, answer.headers["retry-after"], answer.body) == (429, wanted, body)


@pytest.mark.parametrize(
    "status",
    [
        *("400 Bad Request", "404 Not Found", "422 Unprocessable Entity", "429 Too Many"),
        "501 Not Implemented",  # of an API that the model does not have
    ],
)
async def test_a_clients_error_passes_untouched_and_is_not_retried(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway, status: str
) -> None:
    body = b'{"error": {"message": "no",  "type": "BadRequestError", "param": null, "code": 400}}'
    engine.script = other_engine.script = [reply(body, status)]
    gateway = await start_gateway(engine, other_engine)
    for _ in range(10):
        answer = await call(gateway.port)
        assert answer.status == int(status[:3])
        assert answer.body == body
    assert requests_of(engine, other_engine) == 10
    assert not any(one.outlier_detection.failures for one in gateway.context.fleet.engines.values())


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        (b"Internal Server Error", "text/plain", "Internal Server Error"),
        (b'{"detail":"Not Found"}', "application/json", "Not Found"),
        (b'{"detail":[{"msg":"no"}]}', "application/json", '[{"msg":"no"}]'),
        (b'{"object":"error","message":"too long","code":400}', "application/json", "too long"),
        (b'{"error":"plain"}', "application/json", "plain"),
        (b"", "text/plain", "the engine answered 500 without a reason"),
    ],
)
async def test_an_engines_error_gets_the_envelope(
    engine: ScriptedEngine, gateway: GatewayThread, body: bytes, kind: str, message: str
) -> None:
    engine.script = [reply(body, "500 Internal Server Error", kind)]
    answer = await call(gateway.port)
    assert (answer.status, answer.code) == (500, "engine_error")
    assert answer.json["error"]["message"] == message
    assert answer.headers["content-type"] == "application/json"


class _Hasty(asyncio.Protocol):
    """Answers a POST after its head and reads no further."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"GET"):
            self._transport.write(reply(b'{"data":[{"id":"tiny"}]}'))
            return
        refusal = b'{"error":{"message":"too much","type":"x","param":null,"code":413}}'
        self._transport.pause_reading()
        self._transport.write(reply(refusal, "413 Payload Too Large"))
        self._transport.close()


async def test_an_engine_that_refuses_before_it_has_read_is_heard(start_gateway: StartGateway) -> None:
    async with serving(_Hasty) as port:
        gateway = await start_gateway(engine=(f"http://127.0.0.1:{port}",))
        answer = await call(gateway.port, request(b'{"model":"tiny","x":"' + b"y" * 8_000_000 + b'"}'))
        assert (answer.status, answer.json["error"]["message"]) == (413, "too much")


async def test_an_error_too_long_to_hold_passes_as_it_is(engine: ScriptedEngine, gateway: GatewayThread) -> None:
    body = b"no " * 200_000
    engine.script = [reply(body, "500 Internal Server Error", "text/plain")]
    answer = await call(gateway.port)
    assert (answer.status, answer.headers["content-type"]) == (500, "text/plain")
    assert answer.body == body


GOOD: dict[str, Any] = json.loads(event("a").removeprefix(b"data: "))
NOTHING = ["null", "false", '""', "{}", "[]", "{ }", "0", '{"code":null}', '{ "message": "", "type": null, "code": 0 }']
SPELT = ['{"error":%s,"id":"r"}', '{ "error" : %s, "id": "r"}', '\n{\n  "error": %s,\n  "id": "r"\n}']
ERRORS = [
    b'{"error":{"message":"dead","code":500}}',
    b'{ "error" : {"message": "dead"}}',
    b'{"error":"dead"}',
    b'{"object":"error","message":"dead"}',
    b'{"type":"error","error":{"type":"api_error","message":"dead"}}',
    b'{"type": "error", "error": {"type": "overloaded_error", "message": "full"}}',
]
CLIENTS = [
    b'{"error":{"message":"too long","code":400}}',
    b'{"error":{"message":"too long","type":"BadRequestError","code":null}}',
    b'{"type":"error","error":{"type":"invalid_request_error","message":"x"}}',
]


def engines_failures(gateway: GatewayThread) -> int:
    return sum(one.outlier_detection.failures for one in gateway.context.fleet.engines.values())


@pytest.mark.parametrize("is_stream", [False, True])
async def test_no_error_is_no_error(
    engine: ScriptedEngine,
    other_engine: ScriptedEngine,
    start_gateway: StartGateway,
    subtests: pytest.Subtests,
    is_stream: bool,
) -> None:
    gateway = await start_gateway(engine, other_engine)
    for spelt, nothing in product(SPELT[:2] if is_stream else SPELT, NOTHING):
        body = (spelt % nothing).encode()
        script: Script = [reply(body)]
        if is_stream:
            body = b"data: " + body + b"\n\n" + event("b") + DONE
            script = [SSE_HEAD, chunk(body), LAST_CHUNK]
        with subtests.test(body=body):
            engine.script = other_engine.script = script
            before = requests_of(engine, other_engine)
            answer = await call(gateway.port, request(STREAM if is_stream else None))
            assert (answer.status, answer.body) == (200, body)
            assert requests_of(engine, other_engine) == before + 1
            assert gateway.context.metrics.upstream_errors == {}
            assert engines_failures(gateway) == 0


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("body", ERRORS)
async def test_an_error_is_one_however_it_is_written(
    engine: ScriptedEngine, gateway: GatewayThread, body: bytes, is_stream: bool
) -> None:
    script = [SSE_HEAD, chunk(b"data: " + body + b"\n\n"), LAST_CHUNK] if is_stream else [reply(body)]
    engine.script = script
    assert (await call(gateway.port, request(STREAM if is_stream else None))).status == 200
    assert engines_failures(gateway) == 1


async def test_an_error_of_the_clients_is_no_failure(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway, subtests: pytest.Subtests
) -> None:
    gateway = await start_gateway(engine, other_engine)
    for body, is_stream in product(CLIENTS, (False, True)):
        with subtests.test(body=body, is_stream=is_stream):
            script = [SSE_HEAD, chunk(b"data: " + body + b"\n\n"), LAST_CHUNK] if is_stream else [reply(body)]
            engine.script = other_engine.script = script
            before = requests_of(engine, other_engine)
            assert body in (await call(gateway.port, request(STREAM if is_stream else None))).body
            assert requests_of(engine, other_engine) == before + 1
            assert engines_failures(gateway) == 0


@pytest.mark.parametrize("is_large", [False, True])
async def test_what_a_request_leaves_null_is_left_out(
    engine: ScriptedEngine, gateway: GatewayThread, is_large: bool
) -> None:
    nothing = dict.fromkeys(("stream", "vllm_xargs", "stream_options", "metadata", "service_tier", "user", "tools"))
    body = {"model": "tiny", "input": "x" * (100_000 if is_large else 1), **nothing, "max_output_tokens": None}
    answer = await call(gateway.port, request({**body, "request_id": None}, path="/v1/responses"))
    assert answer.status == 200
    found = engine.seen[0].json
    assert found["request_id"].startswith("resp_")
    body = {**body, "vllm_xargs": {"traffic_class": None}, "previous_response_id": None}
    assert (await call(gateway.port, request(body, path="/v1/responses"))).status == 200
    assert {seen.headers["x-traffic-class"] for seen in engine.seen} == {"default"}
