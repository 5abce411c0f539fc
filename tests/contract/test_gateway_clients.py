"""The clients that people use, against a scripted engine."""

import asyncio
from collections.abc import AsyncIterator

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam

from tests.contract.conftest import StartGateway
from tests.support.gateway_server import GatewayThread, eventually
from tests.support.scripted_engine import (
    CLOSE,
    DONE,
    HANG,
    LAST_CHUNK,
    SSE_HEAD,
    ScriptedEngine,
    chunk,
    completion,
    event,
    reply,
    stream,
    usage_event,
)

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def gateway(engine: ScriptedEngine, start_gateway: StartGateway) -> GatewayThread:
    return await start_gateway(engine)


@pytest.fixture
async def client(gateway: GatewayThread) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as made:
        yield made


async def test_chat(client: AsyncOpenAI, engine: ScriptedEngine) -> None:
    said = await client.chat.completions.create(
        model="tiny", messages=MESSAGES, temperature=0, extra_body={"priority": 0, "vllm_xargs": {"x": 1}}
    )
    assert said.choices[0].message.content == "Hello!"
    assert said.usage is not None
    assert said.usage.completion_tokens == 2
    assert engine.seen[0].json["vllm_xargs"] == {"traffic_class": "default", "x": 1}
    assert "authorization" not in engine.seen[0].headers


async def test_chat_stream_with_usage(client: AsyncOpenAI, engine: ScriptedEngine) -> None:
    frames = [event("Hé"), event("llo 🙂"), event("", finish="stop"), usage_event(5, 2.5), DONE]
    engine.script = [SSE_HEAD, *(chunk(frame) for frame in frames), LAST_CHUNK]
    found = await client.chat.completions.create(
        model="tiny", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    events = [item async for item in found]
    assert "".join(item.choices[0].delta.content or "" for item in events if item.choices) == "Héllo 🙂"
    assert events[-1].usage is not None
    assert events[-1].usage.completion_tokens == 5


async def test_models(client: AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == ["tiny"]
    assert (await client.models.retrieve("tiny")).id == "tiny"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("huge")


async def test_32_in_parallel(client: AsyncOpenAI, engine: ScriptedEngine, gateway: GatewayThread) -> None:
    engine.choose = lambda seen: [0.05, reply(completion(seen.json["user"]))]
    calls = [client.chat.completions.create(model="tiny", messages=MESSAGES, user=f"u{at}") for at in range(32)]
    said = await asyncio.gather(*calls)
    assert [item.choices[0].message.content for item in said] == [f"u{at}" for at in range(32)]
    assert gateway.plane.metrics.cells["tiny", "default"].requests == {200: 32}


async def test_errors_become_the_clients_exceptions(client: AsyncOpenAI, engine: ScriptedEngine) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        await client.chat.completions.create(model="huge", messages=MESSAGES)
    assert unknown.value.code == "model_not_found"
    assert unknown.value.param == "model"
    assert unknown.value.request_id is not None
    engine.script = [reply(b'{"error":{"message":"no","type":"x","param":null,"code":400}}', "400 Bad Request")]
    with pytest.raises(openai.BadRequestError, match="no"):
        await client.chat.completions.create(model="tiny", messages=MESSAGES)
    engine.script = [CLOSE]
    with pytest.raises(openai.InternalServerError):
        await client.chat.completions.create(model="tiny", messages=MESSAGES)


async def test_a_broken_stream_is_an_exception_not_an_end(client: AsyncOpenAI, engine: ScriptedEngine) -> None:
    engine.script = [SSE_HEAD, chunk(event("a")), 0.05, CLOSE]
    found = await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
    with pytest.raises(openai.APIError, match="broke the response off"):
        [item async for item in found]


async def test_the_clients_own_retries_succeed(
    engine: ScriptedEngine, start_gateway: StartGateway, gateway: GatewayThread
) -> None:
    engine.scripts = [[CLOSE]]
    async with AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=2) as client:
        said = await client.chat.completions.create(model="tiny", messages=MESSAGES)
    assert said.choices[0].message.content == "Hello!"


async def test_leaving_a_stream_frees_the_engine(client: AsyncOpenAI, engine: ScriptedEngine) -> None:
    engine.script = [*stream("a")[:2], HANG]
    found = await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
    await anext(aiter(found))
    leave = asyncio.get_running_loop().time()
    await found.close()
    async with asyncio.timeout(1):
        await engine.seen[0].closed.wait()
    closed_at = engine.seen[0].closed_at
    assert closed_at is not None
    assert closed_at - leave < 0.25


async def test_a_client_side_time_out_frees_the_engine(
    client: AsyncOpenAI, engine: ScriptedEngine, gateway: GatewayThread
) -> None:
    engine.script = [HANG]
    with pytest.raises(openai.APITimeoutError):
        await client.chat.completions.create(model="tiny", messages=MESSAGES, timeout=0.3)
    async with asyncio.timeout(1):
        await engine.seen[0].closed.wait()
    await eventually(lambda: gateway.plane.metrics.disconnects == {"wait": 1})
