"""How a stream may end and how a body may begin."""

import asyncio
import json
from itertools import product

import pytest

from tests.contract.conftest import StartGateway
from tests.support.gateway_client import ASKING, STREAM, call, request
from tests.support.gateway_server import GatewayThread, eventually
from tests.support.scripted_engine import (
    CLOSE,
    HANG,
    LAST_CHUNK,
    RESET,
    SSE_HEAD,
    Act,
    Script,
    ScriptedEngine,
    chunk,
    event,
    usage_event,
)
from tests.support.stream_events import OPEN_HEAD

ENDS = [
    ("/v1/chat/completions", b"data: [DONE]"),
    ("/v1/chat/completions", b"data:[DONE]"),
    ("/v1/chat/completions", b": comment\ndata: [DONE]"),
    ("/v1/messages", b'event: message_stop\ndata: {"type":"message_stop"}'),
    ("/v1/responses", b'event: response.completed\ndata: {"type":"response.completed","response":{}}'),
    ("/v1/responses", b'event: response.incomplete\ndata: {"type":"response.incomplete","response":{}}'),
    ("/v1/responses", b'data: {"type":"response.completed","response":{}}\nevent: response.completed'),
    ("/v1/responses", b'data: {"type":"response.completed","response":{}}'),
    ("/v1/responses", b'data: {"response":{},"sequence_number":9,"type":"response.completed"}'),
    ("/v1/responses", b'event: response.cancelled\ndata: {"type":"response.cancelled","response":{}}'),
    ("/v1/messages", b'data: {"id":"m"}\nevent: message_stop'),
    ("/v1/messages", b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"}}'),
    ("/v1/chat/completions", b'data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'),
    ("/v1/chat/completions", b'id: 1\ndata: {"choices":[{"index":0,"finish_reason":"tool_calls"}],"usage":null}'),
    ("/v1/completions", b'data: {"id":"c","choices":[{"index":0,"text":"a","finish_reason":"length"}]}\nid: 4'),
]
FAILED = [
    ("/v1/responses", b'event: response.failed\ndata: {"response":{"error":{}},"type":"response.failed"}'),
    ("/v1/responses", b'data: {"type":"response.failed","response":{"error":{}}}'),
    ("/v1/responses", b'event: error\ndata: {"type":"error","message":"x"}'),
    ("/v1/messages", b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"x"}}'),
    ("/v1/messages", b'data: {"type":"error","error":{"type":"api_error","message":"x"}}\nevent: error'),
    ("/v1/chat/completions", b'data: {"error":{"message":"x"}}'),
    ("/v1/completions", b'id: 1\ndata: {"error":{"message":"x"}}'),
    ("/v1/responses", b'data: {"response":{"error":{}},"sequence_number":9,"type":"response.failed"}'),
    ("/v1/messages", b'data: {"id":"m","error":{"type":"api_error"},"type":"error"}'),
    ("/v1/messages", b'data: {"id":"m"}\nevent: error'),
    ("/v1/chat/completions", b'data: {"id":"c","error":{"message":"x"},"choices":[{"finish_reason":"error"}]}'),
    ("/v1/chat/completions", b'data: {"error":\ndata: {"message":"x"}}'),
]
LINES = [b"", b"\n", b"\n\n", b"\r\n", b"\r\n\r\n", b"\n\n\n"]


@pytest.mark.parametrize("lasts", [ENDS, FAILED])
async def test_a_stream_that_said_its_end_is_whole_and_one_that_said_that_it_failed_gets_no_second_error(
    engine: ScriptedEngine, gateway: GatewayThread, subtests: pytest.Subtests, lasts: list[tuple[str, bytes]]
) -> None:
    [one] = gateway.context.fleet.engines.values()
    errors: dict[str, int] = {}
    for (path, last), line, body in product(lasts, LINES, (STREAM, ASKING)):
        if not line and not last.endswith((b"}", b"]")):
            continue  # its last line is not whole
        with subtests.test(path=path, last=last + line, asks=body is ASKING):
            first = event("a").replace(b"\n", b"\r\n") if line.startswith(b"\r") else event("a")
            engine.script = [OPEN_HEAD, first, last + line, CLOSE]
            if lasts is FAILED:
                errors["error_event"] = errors.get("error_event", 0) + 1
            answer = await call(gateway.port, request(body, path=path))
            assert answer.body == first + last + line
            assert gateway.context.metrics.upstream_errors == errors
            assert one.outlier_detection.stream_failures == 0 or lasts is FAILED


@pytest.mark.parametrize("end", [CLOSE, RESET, HANG])
async def test_a_stream_that_said_its_end_is_whole_however_its_connection_ends(
    engine: ScriptedEngine, start_gateway: StartGateway, subtests: pytest.Subtests, end: Act
) -> None:
    gateway = await start_gateway(engine, idle_timeout_s=0.3)
    [one] = gateway.context.fleet.engines.values()
    for lasts in (ENDS, FAILED):
        cases = list(product(lasts, (True, False), (STREAM, ASKING)))
        frames = [[event("a"), last + b"\n\n"] for (_, last), _, _ in cases]
        scripts: list[Script] = [
            [*([SSE_HEAD, *map(chunk, sent)] if is_chunked else [OPEN_HEAD, *sent]), 0.05, end]
            for sent, (_, is_chunked, _) in zip(frames, cases, strict=True)
        ]
        engine.choose = lambda seen, scripts=scripts: scripts[json.loads(seen.body)["seed"]]  # type: ignore[misc]
        answers = await asyncio.gather(  # together, because each waits for a time-out
            *[
                call(gateway.port, request({**body, "seed": number}, path=path))
                for number, ((path, _), _, body) in enumerate(cases)
            ]
        )
        for answer, sent, case in zip(answers, frames, cases, strict=True):
            with subtests.test(case=case):
                assert (answer.body, answer.is_whole) == (b"".join(sent), True)
        assert one.outlier_detection.stream_failures == 0 or lasts is FAILED
    assert {line.get("error") for line in gateway.log_lines()} <= {None, "error_event"}


@pytest.mark.parametrize(
    "last", [b"", b"data: {", b"data: [DO", b"data: [DONE", b'data: {"x":"[DONE]"}\n', b": [DONE]\n"]
)
async def test_a_stream_that_did_not_is_broken(engine: ScriptedEngine, gateway: GatewayThread, last: bytes) -> None:
    engine.script = [OPEN_HEAD, event("a"), last, CLOSE]
    answer = await call(gateway.port, request(STREAM))
    [one] = gateway.context.fleet.engines.values()
    assert one.outlier_detection.stream_failures == 1
    lines = answer.body.rstrip().split(b"\n")
    assert json.loads(lines[-1].removeprefix(b"data: "))["error"]["code"] == "stream_broken"


async def test_a_stream_that_breaks_within_an_event_shows_no_half_of_it_unless_it_is_long(
    engine: ScriptedEngine, gateway: GatewayThread
) -> None:
    long = b'data: {"x":"' + b"y" * 100_000
    for half, shown in ((b'data: {"id":"x', b""), (long, long + b"\n\n")):
        engine.script = [SSE_HEAD, chunk(event("a")), chunk(half), CLOSE]
        answer = await call(gateway.port, request(ASKING))
        assert answer.body.startswith(event("a") + shown + b'data: {"error":')


@pytest.mark.parametrize(
    "more",
    [{"n": 2}, {"n": "2"}, {"prompt": ["a", "b"]}, {"prompt": [[1], [2]]}, {"prompt": "a", "prompt_embeds": "b"}],
)
async def test_of_several_choices_the_usage_behind_all_is_the_end(
    engine: ScriptedEngine, gateway: GatewayThread, more: dict[str, object]
) -> None:
    finished = event("", finish="stop")
    engine.script = [OPEN_HEAD, finished, CLOSE]
    answer = await call(gateway.port, request({**STREAM, **more}, path="/v1/completions"))
    assert b"stream_broken" in answer.body
    engine.script = [OPEN_HEAD, finished, usage_event(7), CLOSE]
    assert (await call(gateway.port, request({**STREAM, **more}))).body == finished
    assert (await call(gateway.port, request({**ASKING, **more}))).body == finished + usage_event(7)


@pytest.mark.parametrize("more", [{"n": 1}, {"n": None}, {"prompt": ["a"]}, {"prompt": [1, 2]}, {"prompt": "a"}])
async def test_the_only_choice_that_finished_is_the_end(
    engine: ScriptedEngine, gateway: GatewayThread, more: dict[str, object]
) -> None:
    engine.script = [OPEN_HEAD, event("a", finish="stop"), CLOSE]
    answer = await call(gateway.port, request({**STREAM, **more}, path="/v1/completions"))
    assert answer.body == event("a", finish="stop")
    engine.script = [OPEN_HEAD, event("a"), CLOSE]
    answer = await call(gateway.port, request({**STREAM, **more}, path="/v1/completions"))
    assert b"stream_broken" in answer.body


@pytest.mark.parametrize("is_chunked", [True, False])
async def test_usage_in_a_last_event_without_its_blank_line_counts_and_is_taken_out(
    engine: ScriptedEngine, gateway: GatewayThread, is_chunked: bool
) -> None:
    frames = [event("a"), b"data: [DONE]\n\n", usage_event(7).rstrip(b"\n") + b"\n"]
    engine.script = [SSE_HEAD, *map(chunk, frames), LAST_CHUNK] if is_chunked else [OPEN_HEAD, *frames, CLOSE]
    assert (await call(gateway.port, request(STREAM))).body == b"".join(frames[:2])
    cell = gateway.context.metrics.cells["tiny", "default"]
    await eventually(lambda: cell.tokens_by_usage == 7)


async def test_a_body_may_begin_with_a_byte_order_mark(
    engine: ScriptedEngine, gateway: GatewayThread, subtests: pytest.Subtests
) -> None:
    mark = b"\xef\xbb\xbf"
    members: tuple[dict[str, object], ...] = ({}, {"vllm_xargs": {"a": 1}}, {"priority": 5})
    paths = ("/v1/chat/completions", "/v1/responses", "/v1/embeddings")
    for size, more, path in product((1, 100_000), members, paths):
        with subtests.test(size=size, more=more, path=path):
            body = {"model": "tiny", "messages": [{"role": "user", "content": "ü" * size}], **more}
            answer = await call(gateway.port, request(mark + json.dumps(body).encode(), path=path))
            assert answer.status == 200
            sent = engine.seen[-1].body
            assert sent.startswith(mark)
            assert json.loads(sent.removeprefix(mark))["messages"] == body["messages"]
    answer = await call(gateway.port, request(mark * 2 + b"{}"))
    assert (answer.status, answer.code) == (400, "invalid_json")


async def test_a_body_may_be_in_utf_16_or_32_as_for_vllm(
    engine: ScriptedEngine, gateway: GatewayThread, subtests: pytest.Subtests
) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "grüße 🙂"}]}
    for coding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"):
        with subtests.test(coding=coding):
            answer = await call(gateway.port, request(json.dumps(body, ensure_ascii=False).encode(coding)))
            assert answer.status == 200
            assert engine.seen[-1].json == body
            answer = await call(gateway.port, request(b"{" + json.dumps(body).encode(coding)))
            assert (answer.status, answer.code) == (400, "invalid_json")
