"""The loop on a real Redis with engines behind real HTTP: steering, take-over, fencing, Redis gone and back."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from controller.collect import Collector
from controller.lease import Leadership
from controller.loop import VALID_FOR_S, ControlLoop
from controller.metrics import ControllerMetrics
from controller.pilot import Pilot
from policy.clock import SystemClock
from policy.errors import FencedError
from policy.redis_store import RedisStore
from policy.types import Lease, Mode, Policy
from tests.closed_loop.plant import CODE, MODEL, POOL, cpu_step_s, oracle, true_goodput
from tests.support.controller_engine import HttpEngine
from tests.support.redis_server import RedisServer

TICK_S = 0.2


@pytest.fixture
def server() -> Iterator[RedisServer]:
    found = RedisServer()
    yield found
    found.close()


@pytest.fixture
def store(server: RedisServer) -> Iterator[RedisStore]:
    found = RedisStore(server.url)
    yield found
    found.close()


@asynccontextmanager
async def running(url: str, holder: str) -> AsyncIterator[ControlLoop]:
    store = RedisStore(url)
    clock = SystemClock()
    async with aiohttp.ClientSession() as session:
        loop = ControlLoop(
            store=store,
            leadership=Leadership(store, holder, clock),
            collector=Collector(session, clock),
            pilot=Pilot(),
            metrics=ControllerMetrics(),
            clock=clock,
            interval_s=TICK_S,
        )
        task = asyncio.create_task(loop.run())
        try:
            yield loop
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            store.close()


STARTS_SHALLOW = Policy(model=MODEL, static_k=1)
"""With a gain to be found: after exploring the law goes on from the static K, which may be as good as the best."""


async def until(condition: object, timeout_s: float = 8.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # type: ignore[operator]  # noqa: ASYNC110 - watches a database
            await asyncio.sleep(0.05)


def k_of(engine: HttpEngine) -> int:
    return engine.plant.k_of(engine.applied[-1] if engine.applied else None, "code", 8)


def is_settled(engine: HttpEngine) -> bool:
    """Whether K is as good as the best but for the policy's minimum gain, which may keep it there for ever."""
    load, truth = {"code": 8}, {"code": CODE}
    best, _ = oracle(load, truth, cpu_step_s)
    reached = true_goodput(load, truth, {"code": k_of(engine)}, cpu_step_s)
    return reached * (1 + STARTS_SHALLOW.minimum_gain_ratio) >= best


async def test_an_engine_is_steered_and_every_decision_recorded(server: RedisServer, store: RedisStore) -> None:
    store.put_policy(STARTS_SHALLOW, 0, 1.0)
    async with HttpEngine(store) as engine, running(server.url, "a") as loop:
        engine.ignores_names = True
        await until(lambda: any(item.reason == "gain" for item in store.decisions(MODEL, POOL, 100)))
        await until(lambda: is_settled(engine))
        engine.load = {"chat": 16}
        await until(lambda: engine.plant.k_of(engine.applied[-1], "chat", 16) == 0)
        versions = [item.version for item in engine.applied]
        assert versions == sorted(set(versions))
        assert all(item.valid_for_s == VALID_FOR_S for item in engine.applied)
        gauge = f'specpilot_controller_k{{model_name="{MODEL}",pool="{POOL}",traffic_class="chat"}} 0.0'
        await until(lambda: gauge in loop._metrics.render().decode())
        newest = store.decisions(MODEL, POOL, 1)[0]
        assert newest.evidence["classes"]["chat"]["survival"]


async def test_an_unchanged_schedule_is_renewed_before_it_lapses(server: RedisServer, store: RedisStore) -> None:
    store.put_policy(Policy(model=MODEL, mode=Mode.OFF, static_k=2), 0, 1.0)
    async with HttpEngine(store) as engine, running(server.url, "a"):
        await until(lambda: len(engine.applied) >= 3)
        first, second, third = engine.applied[:3]
        assert {item.k for one in (first, second, third) for ranges in one.classes.values() for item in ranges} == {2}
        assert third.issued_at - second.issued_at <= 2.5


async def test_a_stand_by_takes_over_within_five_seconds_without_a_jump(server: RedisServer, store: RedisStore) -> None:
    store.put_policy(STARTS_SHALLOW, 0, 1.0)
    async with HttpEngine(store) as engine, running(server.url, "a") as first, running(server.url, "b") as second:
        await until(lambda: any(item.reason == "gain" for item in store.decisions(MODEL, POOL, 100)))
        await until(lambda: is_settled(engine))
        assert (first._leadership.lease is None) != (second._leadership.lease is None)
        leader, other = (first, second) if first._leadership.lease else (second, first)
        before = k_of(engine)
        leader._leadership.renew = lambda: None  # type: ignore[method-assign] # it hangs
        leader._leadership.stand_down()
        seen = len(engine.applied)
        await until(lambda: other._leadership.lease is not None, 5.0)
        await until(lambda: len(engine.applied) >= seen + 3)
        assert {engine.plant.k_of(item, "code", 8) for item in engine.applied[seen:]} <= {
            before - 1,
            before,
            before + 1,
        }
        assert not any(item.reason == "explore" for item in store.decisions(MODEL, POOL, 5))


async def test_a_deposed_leader_cannot_write_and_stands_down(server: RedisServer, store: RedisStore) -> None:
    async with HttpEngine(store) as engine, running(server.url, "a") as loop:
        await until(lambda: bool(engine.applied))
        old = loop._leadership.lease
        assert old is not None
        store._redis.delete("specpilot:lease")
        new = store.acquire_lease("b", 3.0)
        assert new is not None
        with pytest.raises(FencedError):
            store.publish_schedule(engine.applied[-1], Lease("a", old.fence))
        await until(lambda: loop._leadership.lease is None)


async def test_redis_killed_and_back_empty(server: RedisServer, store: RedisStore) -> None:
    async with HttpEngine(store) as engine, running(server.url, "a") as loop:
        await until(lambda: len(engine.applied) >= 2)
        last = engine.applied[-1].version
        server.stop()
        ticks = loop.ticks
        await until(lambda: loop.ticks >= ticks + 3, 10.0)
        server.start()
        await until(lambda: engine.applied[-1].version > last, 10.0)


async def test_a_slow_engine_does_not_delay_the_other(server: RedisServer, store: RedisStore) -> None:
    async with HttpEngine(store, "one") as slow, HttpEngine(store, "two", 1) as quick, running(server.url, "a") as loop:
        slow.is_slow = True
        await until(lambda: "two" in loop._collector.scraped_at and len(quick.applied) >= 2)
        assert "one" not in loop._collector.scraped_at


async def test_a_wake_up_ticks_at_once(server: RedisServer, store: RedisStore) -> None:
    async with running(server.url, "a") as loop:
        loop._interval_s = 5.0
        await asyncio.sleep(0.5)
        ticks = loop.ticks
        loop.wake()
        await until(lambda: loop.ticks > ticks, 0.5)
