"""A field that is read as a sign is judged by its value, wherever it stands and however it is written."""

import json
from itertools import product
from typing import Any

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
