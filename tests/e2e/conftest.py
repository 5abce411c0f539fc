"""One whole system for the end-to-end tests, and what an engine without speculation answers."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import AsyncOpenAI

from tests.support.stack import Engine, Stack, prompts

Reply = tuple[str, tuple[int, ...]]


async def greedy_replies(base_url: str, count: int, in_flight: int = 12) -> list[Reply]:
    """Return text and token ids of the replies to `count` held-out prompts at temperature 0."""
    limit = asyncio.Semaphore(in_flight)
    async with AsyncOpenAI(base_url=f"{base_url}/v1", api_key="test", max_retries=0) as client:

        async def reply(traffic_class: str, messages: list[dict[str, str]], turn: int) -> Reply:
            async with limit:
                done = await client.chat.completions.create(
                    model="demo",
                    messages=messages,  # type: ignore[arg-type]
                    max_tokens=64 + turn % 40,
                    temperature=0,
                    extra_headers={"X-Traffic-Class": traffic_class},
                    extra_body={"return_token_ids": True},
                )
                choice = done.choices[0]
                return choice.message.content or "", tuple(choice.token_ids or ())  # type: ignore[attr-defined]

        wanted = prompts(count)
        return list(await asyncio.gather(*(reply(name, item["messages"], i) for i, (name, item) in enumerate(wanted))))


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> list[Reply]:
    """What an engine without speculation answers, in float32."""
    engine = Engine(tmp_path_factory.mktemp("reference"), "--dtype", "float32")
    try:
        return asyncio.run(greedy_replies(engine.url, 100))
    finally:
        engine.stop()


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The whole system in float32.

    It stores responses, and keeps streams alive while it has nothing to say.
    """
    folder = Path(tmp_path_factory.mktemp("stack"))
    flags = "--dtype float32 --sse-keep-alive-interval 1"
    running = Stack(folder, "--engine-args", flags, VLLM_ENABLE_RESPONSES_API_STORE="1")
    yield running
    running.stop()
