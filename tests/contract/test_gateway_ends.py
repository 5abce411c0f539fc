"""How a stream may end and how a body may begin."""

import json

import pytest

from tests.contract.conftest import StartGateway
from tests.support.gateway_client import ASKING, STREAM, call, request
from tests.support.gateway_server import eventually
from tests.support.scripted_engine import CLOSE, LAST_CHUNK, SSE_HEAD, ScriptedEngine, chunk, event, usage_event

OPEN_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
STOP = b'event: message_stop\ndata: {"type":"message_stop"}'
COMPLETED = b'event: response.completed\ndata: {"type":"response.completed","response":{}}'
LINES = [b"", b"\n", b"\n\n", b"\r\n", b"\r\n\r\n", b"\n\n\n"]


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize(
    ("path", "last"),
    [
        ("/v1/chat/completions", b"data: [DONE]"),
        ("/v1/chat/completions", b"data:[DONE]"),
        ("/v1/chat/completions", b": comment\ndata: [DONE]"),
        ("/v1/messages", STOP),
        ("/v1/responses", COMPLETED),
    ],
)
@pytest.mark.parametrize("body", [STREAM, ASKING], ids=["", "with usage"])
async def test_a_stream_that_said_its_end_is_whole(
    engine: ScriptedEngine, start_gateway: StartGateway, path: str, last: bytes, line: bytes, body: dict[str, object]
) -> None:
    first = event("a").replace(b"\n", b"\r\n") if line.startswith(b"\r") else event("a")
    engine.script = [OPEN_HEAD, first, last + line, CLOSE]
    gateway = await start_gateway(engine)
    answer = await call(gateway.port, request(body, path=path))
    assert answer.body == first + last + line
    assert gateway.context.metrics.upstream_errors == {}
    [one] = gateway.context.fleet.engines.values()
    assert one.outlier_detection.stream_failures == 0


@pytest.mark.parametrize(
    "last", [b"", b"data: {", b"data: [DO", b"data: [DONE", b'data: {"x":"[DONE]"}\n', b": [DONE]\n"]
)
async def test_a_stream_that_did_not_is_broken(
    engine: ScriptedEngine, start_gateway: StartGateway, last: bytes
) -> None:
    engine.script = [OPEN_HEAD, event("a"), last, CLOSE]
    gateway = await start_gateway(engine)
    answer = await call(gateway.port, request(STREAM))
    events = [part for part in answer.body.split(b"\n\n") if part]
    assert json.loads(events[-1].removeprefix(b"data: "))["error"]["code"] == "stream_broken"


@pytest.mark.parametrize("is_chunked", [True, False])
async def test_usage_in_a_last_event_without_its_blank_line_counts_and_is_taken_out(
    engine: ScriptedEngine, start_gateway: StartGateway, is_chunked: bool
) -> None:
    frames = [event("a"), b"data: [DONE]\n\n", usage_event(7).rstrip(b"\n") + b"\n"]
    engine.script = [SSE_HEAD, *map(chunk, frames), LAST_CHUNK] if is_chunked else [OPEN_HEAD, *frames, CLOSE]
    gateway = await start_gateway(engine)
    assert (await call(gateway.port, request(STREAM))).body == b"".join(frames[:2])
    cell = gateway.context.metrics.cells["tiny", "default"]
    await eventually(lambda: cell.tokens_by_usage == 7)


@pytest.mark.parametrize("size", [1, 100_000])
@pytest.mark.parametrize("more", [{}, {"vllm_xargs": {"a": 1}}, {"priority": 5}])
async def test_a_body_may_begin_with_a_byte_order_mark(
    engine: ScriptedEngine, start_gateway: StartGateway, size: int, more: dict[str, object]
) -> None:
    gateway = await start_gateway(engine)
    body = {"model": "tiny", "messages": [{"role": "user", "content": "ü" * size}], **more}
    mark = b"\xef\xbb\xbf"
    for path in ("/v1/chat/completions", "/v1/responses", "/v1/embeddings"):
        answer = await call(gateway.port, request(mark + json.dumps(body).encode(), path=path))
        assert answer.status == 200
        sent = engine.seen[-1].body
        assert sent.startswith(mark)
        assert json.loads(sent.removeprefix(mark))["messages"] == body["messages"]
    answer = await call(gateway.port, request(mark * 2 + b"{}"))
    assert (answer.status, answer.code) == (400, "invalid_json")


@pytest.mark.parametrize("coding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"])
async def test_a_body_may_be_in_utf_16_or_32_as_for_vllm(
    engine: ScriptedEngine, start_gateway: StartGateway, coding: str
) -> None:
    gateway = await start_gateway(engine)
    body = {"model": "tiny", "messages": [{"role": "user", "content": "grüße 🙂"}]}
    answer = await call(gateway.port, request(json.dumps(body, ensure_ascii=False).encode(coding)))
    assert answer.status == 200
    assert engine.seen[-1].json == {**body, "vllm_xargs": {"traffic_class": "default"}}
    answer = await call(gateway.port, request(b"{" + json.dumps(body).encode(coding)))
    assert (answer.status, answer.code) == (400, "invalid_json")
