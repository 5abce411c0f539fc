"""The clients that people use, against a scripted engine."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import openai
import pytest
from anthropic import AsyncAnthropic
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
    assert gateway.context.metrics.cells["tiny", "default"].requests == {200: 32}


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
    await eventually(lambda: gateway.context.metrics.disconnects == {"wait": 1})


TOOL_DELTA = {"tool_calls": [{"index": 0, "id": "t1", "type": "function", "function": {"name": "f", "arguments": "{"}}]}
LOGPROBS = {"content": [{"token": "usage", "logprob": -0.5, "bytes": [117], "top_logprobs": []}]}


def delta(at: int, delta: dict[str, object], **more: object) -> bytes:
    choice = {"index": at, "delta": delta, "finish_reason": None, **more}
    plain = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "tiny", "choices": [choice]}
    return b"data: " + json.dumps(plain).encode() + b"\n\n"


@pytest.mark.parametrize("size", [1, 50, 10_000])
async def test_tools_reasoning_logprobs_and_choices_pass_in_a_stream(
    client: AsyncOpenAI, engine: ScriptedEngine, gateway: GatewayThread, size: int
) -> None:
    frames = [
        delta(0, {"role": "assistant", "reasoning": "Hm…"}),
        delta(1, {"content": "usage"}, logprobs=LOGPROBS),
        delta(0, TOOL_DELTA),
        delta(1, {"content": None, "refusal": "no"}),
    ]
    whole = b"".join(frames) + DONE
    engine.script = [SSE_HEAD, *(chunk(whole[at : at + size]) for at in range(0, len(whole), size)), LAST_CHUNK]
    found = await client.chat.completions.create(
        model="tiny", messages=MESSAGES, stream=True, n=2, logprobs=True, tools=[]
    )
    said = [part.choices[0] async for part in found]
    assert [choice.index for choice in said] == [0, 1, 0, 1]
    assert said[0].delta.model_extra == {"reasoning": "Hm…"}
    assert said[1].logprobs is not None
    assert said[1].logprobs.content is not None
    assert said[1].logprobs.content[0].token == "usage"
    assert said[2].delta.tool_calls is not None
    assert said[2].delta.tool_calls[0].function is not None
    assert said[2].delta.tool_calls[0].function.name == "f"
    assert said[3].delta.refusal == "no"
    cell = gateway.context.metrics.cells["tiny", "default"]
    await eventually(lambda: cell.tokens_by_events == 4)
    assert cell.tokens_by_usage == 0


@pytest.mark.parametrize("options", [None, {"include_usage": False}, {"include_usage": True}])
async def test_usage_is_asked_for_whatever_the_client_asks(
    client: AsyncOpenAI, engine: ScriptedEngine, options: dict[str, bool] | None
) -> None:
    engine.script = stream("a")
    more = {} if options is None else {"stream_options": options}
    found = await client.chat.completions.create(
        model="tiny", messages=MESSAGES, stream=True, extra_body={**more, "structured_outputs": {"choice": ["a"]}}
    )
    assert [part.usage async for part in found] == [None, None]
    assert engine.seen[0].json["stream_options"] == {"include_usage": True}
    assert engine.seen[0].json["structured_outputs"] == {"choice": ["a"]}


def named(kind: str, **fields: object) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


async def test_a_broken_stream_of_responses_is_an_exception(client: AsyncOpenAI, engine: ScriptedEngine) -> None:
    part = named("response.output_text.delta", delta="a", item_id="i", output_index=0, content_index=0)
    engine.script = [SSE_HEAD, chunk(part), 0.02, CLOSE]
    found = await client.responses.create(model="tiny", input="hi", stream=True)
    with pytest.raises(openai.APIError, match="broke the response off"):
        [item async for item in found]


async def test_an_embeddings_error_is_the_clients_exception(client: AsyncOpenAI, engine: ScriptedEngine) -> None:
    engine.script = [reply(b'{"detail":"Not Found"}', "404 Not Found")]
    with pytest.raises(openai.NotFoundError) as caught:
        await client.embeddings.create(model="tiny", input="hi")
    assert caught.value.code == "engine_error"


MESSAGE = {
    "id": "m", "type": "message", "role": "assistant", "model": "tiny", "content": [{"type": "text", "text": "Hello!"}],
    "stop_reason": "end_turn", "stop_sequence": None, "usage": {"input_tokens": 3, "output_tokens": 2},
}  # fmt: skip
MESSAGE_EVENTS = [
    named("message_start", message={**MESSAGE, "content": []}),
    named("content_block_start", index=0, content_block={"type": "text", "text": ""}),
    named("content_block_delta", index=0, delta={"type": "text_delta", "text": "Hé"}),
    named("ping"),
    named("content_block_stop", index=0),
    named("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 7}),
    named("message_stop"),
]


@pytest.fixture
async def messages(gateway: GatewayThread) -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(base_url=gateway.url, api_key="none", max_retries=0) as made:
        yield made


async def test_messages(messages: AsyncAnthropic, engine: ScriptedEngine, gateway: GatewayThread) -> None:
    engine.script = [reply(json.dumps(MESSAGE).encode())]
    said = await messages.messages.create(model="tiny", messages=[{"role": "user", "content": "hi"}], max_tokens=9)
    assert said.content[0].type == "text"
    assert said.content[0].text == "Hello!"
    assert engine.seen[0].json["vllm_xargs"] == {"traffic_class": "default"}
    assert "x-api-key" not in engine.seen[0].headers
    assert gateway.context.metrics.cells["tiny", "default"].tokens_by_usage == 2


async def test_a_stream_of_messages(messages: AsyncAnthropic, engine: ScriptedEngine, gateway: GatewayThread) -> None:
    engine.script = [SSE_HEAD, *map(chunk, MESSAGE_EVENTS), LAST_CHUNK]
    async with messages.messages.stream(
        model="tiny", messages=[{"role": "user", "content": "hi"}], max_tokens=9
    ) as stream_:
        assert [text async for text in stream_.text_stream] == ["Hé"]
        assert (await stream_.get_final_message()).usage.output_tokens == 7
    assert gateway.context.metrics.cells["tiny", "default"].tokens_by_usage == 7


async def test_errors_of_messages_become_the_clients_exceptions(
    messages: AsyncAnthropic, engine: ScriptedEngine, gateway: GatewayThread
) -> None:
    arguments: Any = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}
    with pytest.raises(anthropic.NotFoundError, match="huge"):
        await messages.messages.create(model="huge", **arguments)
    for broken in ([CLOSE], [chunk(named("error", error={"type": "overloaded_error", "message": "x"})), LAST_CHUNK]):
        engine.script = [SSE_HEAD, *map(chunk, MESSAGE_EVENTS[:3]), 0.02, *broken]
        with pytest.raises(anthropic.APIStatusError):
            async with messages.messages.stream(model="tiny", **arguments) as found:
                [text async for text in found.text_stream]
    await eventually(lambda: gateway.context.metrics.upstream_errors == {"closed": 1, "error_event": 1})
