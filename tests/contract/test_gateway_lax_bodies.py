"""What vLLM accepts in a body is accepted, and means the same in every place that reads it."""

import json

import pytest

from tests.support.gateway_client import STREAM, call, request
from tests.support.gateway_server import GatewayThread
from tests.support.scripted_engine import (
    CLOSE,
    DONE,
    LAST_CHUNK,
    SSE_HEAD,
    ScriptedEngine,
    chunk,
    completion,
    event,
    reply,
    usage_event,
)

STREAMING = [SSE_HEAD, chunk(event("a")), chunk(usage_event(7)), chunk(DONE), LAST_CHUNK]
YES = ["true", "TRUE", "True", "t", "yes", "y", "on", "1", 1, 1.0, True]
ROUTES = ["/v1/chat/completions", "/v1/completions", "/invocations", "/v1/responses", "/v1/messages"]


@pytest.mark.parametrize("value", YES)
async def test_a_stream_in_any_of_vllms_words(
    engine: ScriptedEngine, gateway: GatewayThread, subtests: pytest.Subtests, value: object
) -> None:
    engine.script = STREAMING
    for path in ROUTES:
        with subtests.test(path=path):
            answer = await call(gateway.port, request({**STREAM, "stream": value}, path=path))
            assert answer.status == 200
            sent = engine.seen[-1].json
            assert sent["stream"] == value  # the client's own
            is_asked = path not in ROUTES[3:]
            assert sent.get("stream_options") == ({"include_usage": True} if is_asked else None)
            assert answer.body == event("a") + (b"" if is_asked else usage_event(7)) + DONE


async def test_what_vllm_rejects_is_named_and_what_it_ignores_is_not(
    engine: ScriptedEngine, gateway: GatewayThread
) -> None:
    for value in ("maybe", "", " true", 2, 0.5, [], {}):
        for path in ROUTES:
            answer = await call(gateway.port, request({**STREAM, "stream": value}, path=path))
            assert answer.status == 400
            assert answer.json["error"]["param"] == "stream"
        for path in ("/v1/embeddings", "/tokenize", "/score"):
            assert (await call(gateway.port, request({**STREAM, "stream": value}, path=path))).status == 200


@pytest.mark.parametrize("value", YES)
@pytest.mark.parametrize("size", [1, 100_000])
async def test_usage_is_shown_to_a_client_that_asks_in_any_of_these_words(
    engine: ScriptedEngine, gateway: GatewayThread, value: object, size: int
) -> None:
    engine.script = STREAMING
    body = {**STREAM, "stream_options": {"include_usage": value}, "user": "u" * size}
    assert (await call(gateway.port, request(body))).body == event("a") + usage_event(7) + DONE
    assert engine.seen[0].json["stream_options"] == {"include_usage": value}


@pytest.mark.parametrize("value", [True, "true", 1])
@pytest.mark.parametrize("included", [{}, {"include_usage": False}, {"include_usage": None}, {"include_usage": "no"}])
@pytest.mark.parametrize("size", [1, 100_000])
async def test_usage_on_every_event_needs_include_usage(
    engine: ScriptedEngine, gateway: GatewayThread, value: object, included: dict[str, object], size: int
) -> None:
    engine.script = STREAMING
    body = {**STREAM, "stream_options": {"continuous_usage_stats": value, **included}, "user": "u" * size}
    assert (await call(gateway.port, request(body))).body == event("a") + DONE
    assert engine.seen[0].json["stream_options"] == {"include_usage": True}
    assert gateway.context.metrics.cells["tiny", "default"].tokens_by_usage == 7


@pytest.mark.parametrize(
    "options",
    [
        {"include_usage": True, "continuous_usage_stats": True},
        {"include_usage": "maybe"},
        {"include_usage": [], "continuous_usage_stats": True},
        {"continuous_usage_stats": "maybe"},
        "yes",
        [],
    ],
)
async def test_other_options_reach_the_engine_as_they_came(
    engine: ScriptedEngine, gateway: GatewayThread, options: object
) -> None:
    engine.script = [reply(completion()), CLOSE]
    body = json.dumps({"stream_options": options, **STREAM}).encode()
    await call(gateway.port, request(body))
    assert engine.seen[0].json["stream_options"] == options
