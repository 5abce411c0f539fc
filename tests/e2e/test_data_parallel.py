"""Two data-parallel ranks of `vllm serve`: one address, and two engines for the controller."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from specpilot.controller.admin.asking import Asker
from specpilot.controller.estimation.observation import evidence_of
from specpilot.controller.telemetry.scraper import Collector
from specpilot.policy import engine_metrics as names
from specpilot.policy.clock import SystemClock
from specpilot.policy.questions import Kind
from specpilot.policy.records import rank_id
from specpilot.policy.store import Store
from tests.e2e.conftest import greedy_replies
from tests.support.gateway_server import GatewayThread, eventually
from tests.support.patience import PATIENCE_S
from tests.support.redis_server import RedisServer
from tests.support.stack import DEMO_MODEL, Engine, call, counters, until

pytestmark = [pytest.mark.engine, pytest.mark.extended("data parallel"), pytest.mark.timeout(900)]

SPECULATION = {"method": "eagle3", "model": str(DEMO_MODEL / "peagle"), "num_speculative_tokens": 7}
REPLIES = 24


class Server(Engine):
    """`vllm serve` as its user starts it."""

    program = ("tests.support.vllm_serve", "serve")


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module")
def server(redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    speculative = json.dumps(SPECULATION | {"parallel_drafting": True})
    flags = ("--data-parallel-size", "2", "--speculative-config", speculative, "--dtype", "float32")
    running = Server(
        tmp_path_factory.mktemp("ranks"), *flags, VLLM_PLUGINS="specpilot", REDIS_URL=redis.url,
        SPECPILOT_ENGINE_ID="ranks",
    )  # fmt: skip
    yield running
    running.stop()


@pytest.fixture(scope="module")
def ranks(server: Server, redis: RedisServer) -> list[str]:
    """The names of the ranks, which have registered, and so have calibrated themselves."""
    expected, store = [rank_id("ranks", rank) for rank in range(2)], Store(redis.url)
    until(lambda: [record.engine_id for record in store.engines()] == expected)
    assert server.log.read_text().count("step times calibrated in") == 2
    assert {(record.url, record.server_id) for record in store.engines()} == {(server.url, "ranks")}
    store.close()
    return expected


def by_rank(url: str, metric: str) -> dict[str, float]:
    return {rank: value for (rank,), value in counters(url, metric, "engine").items()}


def put(server: Server, guidance: dict[str, Any]) -> tuple[int, Any]:
    return call(f"{server.url}/speculation", "PUT", {"guidance": guidance})[:2]


def test_each_rank_chooses_its_k_and_counts_for_itself_and_the_text_is_that_of_k_0(
    server: Server, ranks: list[str]
) -> None:
    replies = asyncio.run(greedy_replies(server.url, REPLIES))
    states = call(f"{server.url}/speculation")[1]["ranks"]
    assert [(state["engine_id"], state["source"]) for state in states] == [(name, "law") for name in ranks]
    assert all(state["law"]["choices"] > 0 for state in states)
    until(lambda: by_rank(server.url, names.ACCEPTS).keys() == {"0", "1"})
    lines = call(f"{server.url}/metrics?name[]={names.DECODE_TOKENS}&engine=1")[1].splitlines()[2:]
    assert lines
    assert all('engine="1"' in line for line in lines)
    assert put(server, {"override": {"k": 0}})[0] == 200
    assert asyncio.run(greedy_replies(server.url, REPLIES)) == replies
    assert put(server, {})[0] == 200


async def test_a_controller_sees_two_engines_and_a_gateway_one(
    server: Server, ranks: list[str], redis: RedisServer
) -> None:
    store = Store(redis.url)
    engines = await asyncio.to_thread(store.engines)
    counted: dict[str, float] = {}
    async with aiohttp.ClientSession() as session, asyncio.timeout(PATIENCE_S):
        collector, tokens = Collector(session, SystemClock()), {"": 1.0}
        while tokens != counted:  # until the last export
            observations = await collector.scrape(engines)
            tokens = {item.engine_id: sum(evidence_of([item.values]).decode_tokens.values()) for item in observations}
            of_ranks = await asyncio.to_thread(by_rank, server.url, names.DECODE_TOKENS)
            counted = {name: of_ranks[str(rank)] for rank, name in enumerate(ranks)}
    asked = await Asker(store, SystemClock()).ask("demo", "default", Kind.K_BY_LOAD)
    assert {answer.engine_id: answer.unknown for answer in asked.answers} == dict.fromkeys(ranks, "")
    gateway = await GatewayThread(redis_url=redis.url).start()
    await eventually(lambda: [engine.ranks for engine in gateway.context.fleet.engines.values()] == [2])
    assert [*gateway.context.fleet.engines] == ["ranks"]
    await eventually(lambda: gateway.context.fleet.is_serving)
    assert len(await greedy_replies(gateway.url, 6)) == 6
    gateway.leave()
    await asyncio.to_thread(gateway.join)
    store.close()


@pytest.mark.usefixtures("ranks")
def test_a_schedule_reaches_every_rank_and_a_wrong_one_none(server: Server) -> None:
    status, answer = put(server, {"override": {"k": 5}})
    (version,) = {state["version"] for state in answer["ranks"]}
    assert (status, [state["source"] for state in answer["ranks"]]) == (200, ["fixed"] * 2)
    assert put(server, {"override": {"k": -1}})[0] == 422
    assert [state["version"] for state in call(f"{server.url}/speculation")[1]["ranks"]] == [version] * 2
    assert [state["source"] for state in put(server, {})[1]["ranks"]] == ["law"] * 2


def test_at_its_end_no_rank_is_left(server: Server, ranks: list[str], redis: RedisServer) -> None:
    """vLLM kills the ranks, so their records expire."""
    store = Store(redis.url)
    assert [record.engine_id for record in store.engines()] == ranks
    server.process.terminate()
    server.process.wait(PATIENCE_S)
    until(lambda: not store.engines())
    store.close()
