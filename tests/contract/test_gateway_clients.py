"""The clients that people use, against a scripted engine."""

import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import openai
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI, AsyncStream
from openai.types.chat import ChatCompletionMessageParam

from tests.support.gateway_server import GatewayThread, eventually
from tests.support.scripted_engine import (
    CLOSE,
    DONE,
    LAST_CHUNK,
    SSE_HEAD,
    ScriptedEngine,
    chunk,
    event,
    reply,
)

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def client(gateway: GatewayThread) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def named(kind: str, **fields: object) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


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
    part = named("response.output_text.delta", delta="a", item_id="i", output_index=0, content_index=0)
    for first, asked in (
        (event("a"), client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)),
        (part, client.responses.create(model="tiny", input="hi", stream=True)),
    ):
        engine.script = [SSE_HEAD, chunk(first), 0.02, CLOSE]
        found: AsyncStream[Any] = await asked
        with pytest.raises(openai.APIError, match="broke the response off"):
            [item async for item in found]


async def test_the_clients_own_retries_succeed(engine: ScriptedEngine, gateway: GatewayThread) -> None:
    engine.scripts = [[CLOSE]]
    async with AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=2) as client:
        said = await client.chat.completions.create(model="tiny", messages=MESSAGES)
    assert said.choices[0].message.content == "Hello!"


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


async def test_an_embeddings_error_is_the_clients_exception(client: AsyncOpenAI, engine: ScriptedEngine) -> None:
    engine.script = [reply(b'{"detail":"Not Found"}', "404 Not Found")]
    with pytest.raises(openai.NotFoundError) as caught:
        await client.embeddings.create(model="tiny", input="hi")
    assert caught.value.code == "engine_error"


MESSAGE = {
    "id": "m", "type": "message", "role": "assistant", "model": "tiny", "content": [],
    "stop_reason": "end_turn", "stop_sequence": None, "usage": {"input_tokens": 3, "output_tokens": 2},
}  # fmt: skip
MESSAGE_EVENTS = [
    named("message_start", message=MESSAGE),
    named("content_block_start", index=0, content_block={"type": "text", "text": ""}),
    named("content_block_delta", index=0, delta={"type": "text_delta", "text": "Hé"}),
]


async def test_errors_of_messages_become_the_clients_exceptions(engine: ScriptedEngine, gateway: GatewayThread) -> None:
    arguments: Any = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}
    async with AsyncAnthropic(base_url=gateway.url, api_key="none", max_retries=0) as client:
        with pytest.raises(anthropic.NotFoundError, match="huge"):
            await client.messages.create(model="huge", **arguments)
        error = chunk(named("error", error={"type": "overloaded_error", "message": "x"}))
        for broken in ([CLOSE], [error, LAST_CHUNK]):
            engine.script = [SSE_HEAD, *map(chunk, MESSAGE_EVENTS), 0.02, *broken]
            with pytest.raises(anthropic.APIStatusError):
                async with client.messages.stream(model="tiny", **arguments) as found:
                    [text async for text in found.text_stream]
    await eventually(lambda: gateway.context.metrics.upstream_errors == {"closed": 1, "error_event": 1})
