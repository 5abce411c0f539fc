"""Loads over real sockets: their requests, times and failures."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from specpilot.bench.data.conversation import Conversation, of_texts
from specpilot.bench.load.chat_client import ChatClient, Sampling
from specpilot.bench.load.conversations import Work, closed_loop, open_loop
from tests.support.scripted_engine import (
    CLOSE,
    DONE,
    LAST_CHUNK,
    SSE_HEAD,
    ScriptedEngine,
    Step,
    chunk,
    event,
    reply,
    usage_event,
)

ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'


def answered(*texts: str, tokens: int = 4, gap_s: float = 0.0) -> list[Step]:
    steps: list[Step] = [SSE_HEAD, chunk(ROLE)]
    for text in texts:
        steps += [gap_s, chunk(event(text))]
    return [*steps, chunk(event("", finish="length")), chunk(usage_event(tokens)), chunk(DONE), LAST_CHUNK]


@asynccontextmanager
async def asked(engine: ScriptedEngine, sampling: Sampling | None = None) -> AsyncIterator[ChatClient]:
    await engine.start()
    try:
        async with ChatClient(engine.url, "tiny", sampling or Sampling()) as client:
            yield client
    finally:
        await engine.stop()


async def test_an_answer_is_timed_by_what_was_generated_not_by_its_opening() -> None:
    engine = ScriptedEngine()
    engine.script = answered("a", "b", "c", tokens=5, gap_s=0.05)
    async with asked(engine) as client:
        answer = await client.ask([{"role": "user", "content": "Hi"}], 5, 1)
    assert answer.error is None
    assert (answer.text, answer.output_tokens, answer.input_tokens) == ("abc", 5, 3)
    assert answer.ttft_s is not None
    assert answer.ttft_s >= 0.05
    assert len(answer.itl_s) == 3  # b, c and the event that ends it
    assert answer.latency_s == pytest.approx(answer.ttft_s + sum(answer.itl_s))


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ([reply(b'{"error": "no such field: ignore_eos"}', "400 Bad Request")], 'status 400: {"error": "no such'),
        ([SSE_HEAD, chunk(event("a")), CLOSE], "ClientPayloadError"),
        ([SSE_HEAD, chunk(event("a")), LAST_CHUNK], "broke off before"),
        ([SSE_HEAD, chunk(event("a")), chunk(DONE), LAST_CHUNK], "no usage"),
        ([SSE_HEAD, chunk(usage_event(3)), chunk(DONE), LAST_CHUNK], "no generated content"),
        ([SSE_HEAD, chunk(b'data: {"choices": [{}]}\n\n'), chunk(DONE), LAST_CHUNK], "KeyError: 'delta'"),
        ([SSE_HEAD, chunk(b"data: <html>\n\n"), chunk(DONE), LAST_CHUNK], "JSONDecodeError"),
        ([SSE_HEAD, chunk(b'data: {"error": {"message": "dead"}}\n\n'), chunk(DONE), LAST_CHUNK], "error event"),
    ],
)
async def test_what_is_no_whole_answer_is_an_error_that_says_why(script: list[Step], said: str) -> None:
    engine = ScriptedEngine()
    engine.script = script
    async with asked(engine) as client:
        answer = await client.ask([{"role": "user", "content": "Hi"}], 5, 1)
    assert said in (answer.error or "")


async def test_ignore_eos_is_left_out_for_servers_that_do_not_know_it() -> None:
    engine = ScriptedEngine()
    engine.script = answered("a")
    async with asked(engine, Sampling(temperature=0.5, ignore_eos=False)) as client:
        await client.ask([{"role": "user", "content": "Hi"}], 5, 1)
    assert "ignore_eos" not in engine.seen[0].json
    assert engine.seen[0].json["temperature"] == 0.5
    assert engine.seen[0].json["stream_options"] == {"include_usage": True}


async def test_requests_of_one_client_share_a_prefix_cache_with_each_other_and_with_no_others() -> None:
    engine = ScriptedEngine()
    engine.script = answered("a")
    async with asked(engine) as client:
        await closed_loop(client, Work([of_texts(["One?", "Two?"])], count=1), 1)
        async with ChatClient(engine.url, "tiny", Sampling()) as other:
            await other.ask([{"role": "user", "content": "Hi"}], 5, 1)
        async with ChatClient(engine.url, "tiny", Sampling(ignore_eos=False)) as third:
            await third.ask([{"role": "user", "content": "Hi"}], 5, 1)
    first, second, others, plain = (seen.json for seen in engine.seen)
    assert first["cache_salt"] == second["cache_salt"] != others["cache_salt"]
    assert first["cache_salt"].isalnum()  # vLLM takes 128 characters at most, and none that a path is made of
    assert len(first["cache_salt"]) <= 128
    assert "cache_salt" not in plain  # only vLLM and SGLang know it


async def test_turns_follow_on_the_models_own_replies() -> None:
    engine = ScriptedEngine()
    engine.script = answered("fine")
    async with asked(engine) as client:
        run = await closed_loop(client, Work([of_texts(["One?", "Two?"])], count=1), 1)
    assert len(run.answers) == 2
    assert [message["content"] for message in engine.seen[1].json["messages"]] == ["One?", "fine", "Two?"]


async def test_a_tool_call_is_part_of_the_history() -> None:
    call = (
        b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c1","function":'
        b'{"name":"read","arguments":"{}"}}]},"finish_reason":null}]}\n\n'
    )
    engine = ScriptedEngine()
    engine.script = [SSE_HEAD, chunk(ROLE), chunk(call), chunk(usage_event(3)), chunk(DONE), LAST_CHUNK]
    tools = ({"type": "function", "function": {"name": "read"}},)
    async with asked(engine) as client:
        await closed_loop(client, Work([Conversation(of_texts(["One?", "Two?"]).turns, tools)], count=1), 1)
    assert engine.seen[0].json["tools"] == [tools[0]]
    [told] = engine.seen[1].json["messages"][1]["tool_calls"]
    assert told == {"id": "c1", "type": "function", "function": {"name": "read", "arguments": "{}"}}


async def test_a_failed_turn_ends_its_conversation_and_no_other() -> None:
    engine = ScriptedEngine()
    engine.script = answered("a")
    engine.scripts = [[reply(b"{}", "500 Internal Server Error")]]
    work = Work([of_texts(["One?", "Two?"])], count=3)
    async with asked(engine) as client:
        run = await closed_loop(client, work, 1)
    assert [answer.error is None for answer in run.answers] == [False, True, True, True, True]


async def test_a_closed_loop_keeps_so_many_in_flight_and_no_more() -> None:
    engine = ScriptedEngine()
    gate = asyncio.Event()
    engine.script = [gate, *answered("a")]
    async with asked(engine) as client:
        running = asyncio.create_task(closed_loop(client, Work([of_texts(["Hi"])], count=7), 3))
        await engine.wait_seen(3)
        await asyncio.sleep(0.05)
        assert len(engine.seen) == 3
        gate.set()
        run = await running
    assert len(run.answers) == 7


async def test_an_open_loop_does_not_wait_for_answers() -> None:
    engine = ScriptedEngine()
    gate = asyncio.Event()
    engine.script = [gate, *answered("a")]
    async with asked(engine) as client:
        running = asyncio.create_task(open_loop(client, Work([of_texts(["Hi"])], count=4), [0.0, 0.01, 0.02, 0.03]))
        await engine.wait_seen(4)
        gate.set()
        run = await running
    assert len(run.answers) == 4


def test_every_run_asks_the_same_in_the_same_lengths() -> None:
    conversations = [of_texts([str(number), "more"]) for number in range(5)]
    work = Work(conversations, count=4, first=3, output_tokens=100, spread=0.5)
    pieces = list(work.pieces())
    assert [number for number, _ in pieces] == [3, 4, 5, 6]
    assert [piece for _, piece in pieces] == [conversations[number % 5] for number in (3, 4, 5, 6)]  # whole
    lengths = [work.max_tokens(number, 0, piece) for number, piece in pieces]
    assert lengths == [work.max_tokens(number, 0, piece) for number, piece in work.pieces()]
    assert all(50 <= length <= 150 for length in lengths)
    assert len(set(lengths)) > 1
    short = Conversation(conversations[0].turns, max_tokens=9)
    assert work.max_tokens(0, 0, short) == 9
