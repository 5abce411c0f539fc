"""Two data-parallel ranks of a mixture of experts, whose drafter has experts too: they make every pass together.

If one made a pass more or less than the other, both would wait for ever, or compute with the other's tokens.
"""

import asyncio
import json
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from openai import AsyncOpenAI

from specpilot.policy.records import rank_id
from specpilot.policy.store import Store
from tests.e2e.conftest import Reply, greedy_replies
from tests.e2e.test_data_parallel import Server
from tests.support.demo_experts import written
from tests.support.patience import PATIENCE_S
from tests.support.redis_server import RedisServer
from tests.support.stack import call, counters, until

pytestmark = [pytest.mark.engine, pytest.mark.extended("data parallel experts"), pytest.mark.timeout(900)]

K_MAX, LENGTH, REPLIES = 3, 320, 16
ALL_TO_ALL = ("--worker-extension-cls", "tests.support.cpu_experts.Extension")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    redis, folder = RedisServer(), tmp_path_factory.mktemp("experts")
    speculative = json.dumps({"method": "mtp", "num_speculative_tokens": K_MAX})
    flags = ("--data-parallel-size", "2", "--speculative-config", speculative, "--dtype", "float32", *ALL_TO_ALL)
    running = Server(
        folder, *flags, "--max-model-len", str(LENGTH), model=written(folder), VLLM_PLUGINS="specpilot",
        REDIS_URL=redis.url, SPECPILOT_ENGINE_ID="experts",
    )  # fmt: skip
    store, expected = Store(redis.url), [rank_id("experts", rank) for rank in range(2)]
    until(lambda: [record.engine_id for record in store.engines()] == expected)
    assert running.log.read_text().count("step times calibrated in") == 2
    yield running
    running.stop()
    store.close()
    redis.close()


def put(server: Server, guidance: dict[str, Any]) -> None:
    assert call(f"{server.url}/speculation", "PUT", {"guidance": guidance})[0] == 200


def at_k(server: Server, k: int | None, count: int = REPLIES) -> list[Reply]:
    put(server, {} if k is None else {"override": {"k": k}})
    return asyncio.run(greedy_replies(server.url, count))


async def while_k_changes(server: Server) -> list[Reply]:
    rng, replies = Random(1), asyncio.create_task(greedy_replies(server.url, REPLIES))
    while not replies.done():
        await asyncio.to_thread(put, server, {"override": {"k": rng.choice([0, *range(K_MAX + 1)])}})
        await asyncio.sleep(0.1)
    return await replies


def test_the_text_is_that_of_k_0_at_any_k_of_each_rank(server: Server) -> None:
    plain = at_k(server, 0)
    states = call(f"{server.url}/speculation")[1]["ranks"]
    assert [state["source"] for state in states] == ["fixed"] * 2
    assert at_k(server, None) == plain
    assert asyncio.run(while_k_changes(server)) == plain
    drafted, accepted = (
        counters(server.url, f"vllm:spec_decode_num_{kind}_tokens_total", "engine") for kind in ("draft", "accepted")
    )
    assert drafted.keys() == {("0",), ("1",)}
    assert all(accepted[rank] > 0.4 * drafted[rank] > 50 for rank in drafted)


def test_one_request_runs_beside_a_rank_without_any(server: Server) -> None:
    assert at_k(server, None, 1) == at_k(server, 0, 1)


def test_near_the_longest_sequence_where_nothing_is_drafted_the_passes_stay_the_same(server: Server) -> None:
    async def replies() -> list[str]:
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="test", max_retries=0) as client:
            whole = [
                client.completions.create(
                    model="demo",
                    prompt=[1, *range(300, 330)],
                    max_tokens=LENGTH - 31 - 2 * place,
                    temperature=0,
                    extra_body={"ignore_eos": True},
                )
                for place in range(4)
            ]
            async with asyncio.timeout(PATIENCE_S):
                return [reply.choices[0].text for reply in await asyncio.gather(*whole)]

    put(server, {})
    drafting = asyncio.run(replies())
    put(server, {"override": {"k": 0}})
    assert asyncio.run(replies()) == drafting
