"""Limits of API keys: the answer to a client over one, and what is charged."""

import asyncio
import json
from typing import Any

import openai
import pytest

from specpilot.gateway.wire.request_facts import CHARS_PER_TOKEN
from tests.contract.conftest import StartGateway
from tests.support.gateway_client import Answer, Client, call, request
from tests.support.gateway_server import GatewayThread, eventually
from tests.support.hand_clock import Clock
from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import (
    DONE,
    HANG,
    LAST_CHUNK,
    SSE_HEAD,
    ScriptedEngine,
    chunk,
    completion,
    event,
    reply,
    usage_event,
)

AUTH = "authorization: Bearer sk-limited\r\n"
BODY: dict[str, Any] = {"model": "tiny", "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]}
PROMPT = len(json.dumps(BODY)) // CHARS_PER_TOKEN
ESTIMATE = PROMPT + 100


def keys(**limits: int) -> list[dict[str, Any]]:
    return [{"key_id": "limited", "key": "sk-limited", **limits}, {"key_id": "free", "key": "sk-free"}]


async def ask(gateway: GatewayThread, body: dict[str, Any] | None = None) -> Answer:
    return await call(gateway.port, request(body or BODY, headers=AUTH))


def held_tokens(gateway: GatewayThread) -> float:
    held: float = gateway.context.rates._meters["limited"].buckets["tokens"].held
    return held


async def test_requests_over_the_limit_are_told_when_to_come_back(
    engine: ScriptedEngine, start_gateway: StartGateway, clock: Clock
) -> None:
    gateway = await start_gateway(engine, clock=clock, keys=keys(requests_per_minute=3))
    answers = [await ask(gateway) for _ in range(3)]
    assert [answer.status for answer in answers] == [200] * 3
    assert [answer.headers["x-ratelimit-remaining-requests"] for answer in answers] == ["2", "1", "0"]
    assert {answer.headers["x-ratelimit-limit-requests"] for answer in answers} == {"3"}
    assert answers[0].headers["x-ratelimit-reset-requests"] == "20s"
    assert "x-ratelimit-limit-tokens" not in answers[0].headers
    refused = await ask(gateway)
    assert (refused.status, refused.code) == (429, "rate_limit_exceeded")
    assert refused.json["error"]["type"] == "requests"
    assert refused.headers["retry-after"] == "20"
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert refused.headers["x-ratelimit-reset-requests"] == "1m0s"
    assert "limited" not in refused.json["error"]["message"]
    assert len(engine.seen) == 3
    assert gateway.context.metrics.refusals == {"requests": 1}
    free = await call(gateway.port, request(headers="authorization: Bearer sk-free\r\n"))
    assert free.status == 200
    assert not any(name.startswith("x-ratelimit") for name in free.headers)


async def test_without_redis_a_worker_of_two_lets_half_of_a_limit_pass(
    engine: ScriptedEngine, start_gateway: StartGateway, clock: Clock
) -> None:
    gateway = await start_gateway(engine, clock=clock, workers=2, keys=keys(requests_per_minute=4))
    assert [(await ask(gateway)).status for _ in range(3)] == [200, 200, 429]


async def test_the_openai_client_raises_its_own_rate_limit_error(
    engine: ScriptedEngine, start_gateway: StartGateway, clock: Clock
) -> None:
    gateway = await start_gateway(engine, clock=clock, keys=keys(tokens_per_minute=1000))
    client = openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="sk-limited", max_retries=0)
    async with client:
        await client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "hi"}], max_tokens=950)
        engine.script = [HANG]
        slow = asyncio.create_task(ask(gateway, {**BODY, "max_tokens": 950}))
        await engine.wait_seen(2)
        with pytest.raises(openai.RateLimitError) as caught:
            await client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "hi"}], max_tokens=500
            )
        slow.cancel()
    assert caught.value.code == "rate_limit_exceeded"
    assert caught.value.type == "tokens"
    assert int(caught.value.response.headers["retry-after"]) >= 25
    assert gateway.context.metrics.refusals == {"tokens": 1}


async def test_the_estimate_is_replaced_by_the_usage(
    engine: ScriptedEngine, start_gateway: StartGateway, clock: Clock
) -> None:
    gateway = await start_gateway(engine, clock=clock, keys=keys(tokens_per_minute=1000))
    engine.script = [reply(completion(output_tokens=40))]
    answer = await ask(gateway)
    assert answer.headers["x-ratelimit-remaining-tokens"] == str(1000 - ESTIMATE)
    # 3 for the prompt and 40 of output, as the engine said.
    await eventually(lambda: held_tokens(gateway) == pytest.approx(1000 - 43))
    engine.script = [SSE_HEAD, *(chunk(item) for item in (event("a"), usage_event(70_000), DONE)), LAST_CHUNK]
    await ask(gateway, {**BODY, "stream": True})
    await eventually(lambda: held_tokens(gateway) < -69_000)
    assert int((await ask(gateway)).headers["retry-after"]) > 4000


@pytest.mark.parametrize(
    ("script", "used"),
    [
        ([reply(b'{"error":{"message":"no","type":"x","param":null,"code":null}}', "400 Bad Request")], 0),
        ([SSE_HEAD, *(chunk(item) for item in (event("a"), event("b"), DONE)), LAST_CHUNK], ESTIMATE),
        ([SSE_HEAD, *([chunk(event("a"))] * 300), chunk(DONE), LAST_CHUNK], PROMPT + 300),
        ([b"nonsense\r\n\r\n"], 0),
    ],
    ids=["refused", "says no usage", "more events than that", "broken"],
)
async def test_what_a_response_without_usage_costs(
    engine: ScriptedEngine,
    start_gateway: StartGateway,
    clock: Clock,
    script: list[bytes],
    used: int,
) -> None:
    engine.script = script
    gateway = await start_gateway(engine, clock=clock, keys=keys(tokens_per_minute=400))
    await ask(gateway)
    await eventually(lambda: not gateway.context.exchanges)
    await eventually(lambda: held_tokens(gateway) == pytest.approx(400 - used))


async def test_a_request_that_never_went_out_costs_no_tokens(
    engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    engine.script = [HANG]
    gateway = await start_gateway(engine, keys=keys(tokens_per_minute=400), engine_capacity=1, queue_limit=0)
    async with await Client.connect(gateway.port) as client:
        client.send(request(headers="authorization: Bearer sk-free\r\n"))
        await engine.wait_seen(1)
        full = await ask(gateway)
        assert full.code == "queue_full"
        assert full.headers["x-ratelimit-limit-tokens"] == "400"
        await eventually(lambda: held_tokens(gateway) == 400)


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", "/v1/messages/count_tokens"])
async def test_counting_tokens_costs_none(engine: ScriptedEngine, start_gateway: StartGateway, path: str) -> None:
    engine.script = [reply(b'{"input_tokens": 20000}')]
    gateway = await start_gateway(engine, keys=keys(tokens_per_minute=400))
    body = {"model": "tiny", "prompt": "word " * 16_000}
    for _ in range(3):
        answer = await call(gateway.port, request(body, path=path, headers=AUTH))
        assert (answer.status, answer.headers["x-ratelimit-remaining-tokens"]) == (200, "400")
    await eventually(lambda: not gateway.context.exchanges)
    assert held_tokens(gateway) == 400


@pytest.mark.parametrize(
    ("more", "used"), [({}, 3000), ({"max_output_tokens": 100}, 123), ({"background": False}, 273)]
)
async def test_a_response_in_the_background_pays_for_what_it_may_use_as_nobody_sees_what_it_uses(
    engine: ScriptedEngine, start_gateway: StartGateway, clock: Clock, more: dict[str, Any], used: int
) -> None:
    engine.card = {"max_model_len": 3000}
    engine.script = [reply(b'{"id":"resp_1","status":"queued","usage":null}')]
    gateway = await start_gateway(engine, clock=clock, keys=keys(tokens_per_minute=400))
    body = {"model": "tiny", "input": "hi", "background": True, "store": True, **more}
    assert (await call(gateway.port, request(body, path="/v1/responses", headers=AUTH))).status == 200
    await eventually(lambda: not gateway.context.exchanges)
    await eventually(lambda: held_tokens(gateway) == pytest.approx(400 - used))


@pytest.mark.parametrize(
    ("asked", "text", "events", "tokens"),
    [
        ({"prompt": "x" * 4000}, "a", 300, 301),
        ({"prompt": "x"}, "abcd" * 8, 300, 8 * 300),
        ({"prompt": "x", "max_tokens": 100}, "a", 1, 100),
    ],
    ids=["a token an event", "several tokens an event", "fewer than the estimate"],
)
async def test_a_client_that_leaves_before_the_usage_pays_for_its_prompt_and_all_tokens_of_every_event(
    asked: dict[str, Any],
    text: str,
    events: int,
    tokens: int,
    engine: ScriptedEngine,
    start_gateway: StartGateway,
    clock: Clock,
) -> None:
    """Else whoever has a long prompt would read a long answer to its last event but one, and have it for nothing.

    An event carries all that one step verified, and more when its client reads slowly.
    """
    engine.script = [SSE_HEAD, chunk(event("")), *([chunk(event(text))] * events), HANG]
    gateway = await start_gateway(engine, clock=clock, keys=keys(tokens_per_minute=400))
    sent = {"model": "tiny", "stream": True, **asked}
    async with await Client.connect(gateway.port) as client:
        client.send(request(sent, path="/v1/completions", headers=AUTH))
        async with asyncio.timeout(PATIENCE_S):
            read = b""
            while read.count(b"data: ") < events + 1:
                read += await client.reader.read(2**16)
    await eventually(lambda: gateway.context.metrics.disconnects)
    charged = len(json.dumps(sent)) // CHARS_PER_TOKEN + tokens
    await eventually(lambda: held_tokens(gateway) == pytest.approx(400 - charged))
