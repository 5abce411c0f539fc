"""The access log, and the request id that leads to its lines."""

from typing import Any

import pytest

from tests.contract.conftest import StartGateway
from tests.support.gateway_client import STREAM, call, request
from tests.support.gateway_server import GatewayThread, eventually
from tests.support.scripted_engine import (
    CLOSE,
    DONE,
    LAST_CHUNK,
    SSE_HEAD,
    ScriptedEngine,
    chunk,
    event,
    usage_event,
)


async def line_of(gateway: GatewayThread, request_id: str) -> dict[str, Any]:
    (line,) = await eventually(lambda: [item for item in gateway.log_lines() if item["request_id"] == request_id])
    found: dict[str, Any] = line
    return found


async def test_a_line_says_everything_of_a_stream_but_what_was_said(
    engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    engine.script = [
        SSE_HEAD,
        *(chunk(frame) for frame in (event("answer-text"), usage_event(7, 2.5), DONE)),
        LAST_CHUNK,
    ]
    gateway = await start_gateway(engine, keys=[{"key_id": "ci", "key": "sk-hush", "traffic_class": "batch"}])
    body = {**STREAM, "messages": [{"role": "user", "content": "prompt-text"}]}
    answer = await call(gateway.port, request(body, headers="authorization: Bearer sk-hush\r\n"))
    line = await line_of(gateway, answer.headers["x-request-id"])
    for name in ("at", "duration_ms", "ttft_ms"):
        assert line.pop(name) > 0
    assert line == {
        "request_id": answer.headers["x-request-id"],
        "method": "POST",
        "path": "/v1/chat/completions",
        "model": "tiny",
        "requested_model": None,
        "traffic_class": "batch",
        "key_id": "ci",
        "client": "127.0.0.1",
        "engine": answer.headers["x-specpilot-engine"],
        "engines_tried": 1,
        "queue_ms": 0.0,
        "status": 200,
        "error": None,
        "phase": "response",
        "input_tokens": 3,
        "output_tokens": 7,
        "acceptance_length": 2.5,
        "trace_id": None,
    }
    for secret in (b"sk-hush", b"prompt-text", b"answer-text"):
        assert secret not in gateway.log.getvalue()


@pytest.mark.parametrize(
    ("data", "status", "error"),
    [
        (b"nonsense\r\n\r\n", 400, "bad_request"),
        (b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", 400, "bad_request"),
        (b"POST /v1/completions HTTP/1.1\r\nx: " + b"x" * 70_000, 431, "head_too_large"),
    ],
)
async def test_what_cannot_be_read_has_an_id_a_line_and_a_count(
    gateway: GatewayThread, data: bytes, status: int, error: str
) -> None:
    answer = await call(gateway.port, data)
    assert (answer.status, answer.code) == (status, error)
    line = await line_of(gateway, answer.headers["x-request-id"])
    assert (line["status"], line["error"], line["phase"]) == (status, error, "request")
    assert (line["method"], line["path"], line["model"]) == ("", "", None)
    assert gateway.context.metrics.cells["other", "other"].requests == {status: 1}


@pytest.mark.parametrize(
    ("data", "settings", "error"),
    [
        (request(), {"require_api_key": True}, "invalid_api_key"),
        (request({"model": "none"}), {}, "model_not_found"),
        (request(method="PUT"), {}, "method_not_allowed"),
        (request(b"x" * 2000), {"max_body_bytes": 1024}, "body_too_large"),
        (request(b"[]"), {}, "invalid_json"),
    ],
)
async def test_what_is_refused_has_an_id_and_a_line(
    engine: ScriptedEngine, start_gateway: StartGateway, data: bytes, settings: dict[str, Any], error: str
) -> None:
    gateway = await start_gateway(engine, **settings)
    answer = await call(gateway.port, data)
    line = await line_of(gateway, answer.headers["x-request-id"])
    assert (line["status"], line["error"]) == (answer.status, error)
    assert line["engine"] is None


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ([SSE_HEAD, chunk(event("a")), 0.05, CLOSE], "stream_broken"),
        ([SSE_HEAD, chunk(b'data: {"error": {"message": "out of memory"}}\n\n'), LAST_CHUNK], "error_event"),
    ],
)
async def test_a_stream_that_went_wrong_after_its_200_says_so(
    engine: ScriptedEngine, gateway: GatewayThread, script: list[Any], error: str
) -> None:
    engine.script = script
    answer = await call(gateway.port, request(STREAM))
    line = await line_of(gateway, answer.headers["x-request-id"])
    assert (line["status"], line["error"]) == (200, error)


@pytest.mark.parametrize("request_id", ['"', "\\", 'a"b\\c', "{}"])
async def test_an_identifier_of_a_client_is_written_as_json(gateway: GatewayThread, request_id: str) -> None:
    await call(gateway.port, request(headers=f"x-request-id: {request_id}\r\n"))
    assert (await line_of(gateway, request_id))["status"] == 200
