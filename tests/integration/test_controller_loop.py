"""The loop on a real Redis with engines behind real HTTP: steering, slow parts, Redis gone and back."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from specpilot.controller.decision.decider import Decider
from specpilot.controller.lease import TTL_S, Leadership
from specpilot.controller.loop import ControlLoop
from specpilot.controller.metrics import ControllerMetrics
from specpilot.controller.telemetry.scraper import Collector
from specpilot.policy import redis_keys
from specpilot.policy.clock import SystemClock
from specpilot.policy.model_policy import Mode, Policy
from specpilot.policy.records import Decision
from specpilot.policy.schedule import Guidance, Schedule
from specpilot.policy.store import Store
from tests.simulation.engine import MODEL, POOL
from tests.simulation.loop import simulate
from tests.simulation.traffic import ACCEPTANCE, Phase, Source
from tests.support.controller_engine import HttpEngine, own_k
from tests.support.gateway_server import eventually
from tests.support.patience import PATIENCE_S
from tests.support.redis_server import RedisServer

TICK_S = 0.2


@asynccontextmanager
async def running(url: str, interval_s: float = TICK_S) -> AsyncIterator[ControlLoop]:
    store = Store(url)
    clock = SystemClock()
    async with aiohttp.ClientSession() as session:
        loop = ControlLoop(
            store=store,
            leadership=Leadership(store, "a", clock),
            collector=Collector(session, clock),
            law=Decider(),
            metrics=ControllerMetrics(),
            clock=clock,
            interval_s=interval_s,
        )
        task = asyncio.create_task(loop.run())
        try:
            yield loop
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            store.close()


STARTS_SHALLOW = Policy(model=MODEL, static_k=1)
"""With a gain to be found: engines begin with this K, until their own law knows something."""


async def test_an_engine_is_steered_and_every_decision_recorded(server: RedisServer, store: Store) -> None:
    def measured_k() -> float:
        newest = store.decisions(MODEL, POOL, 1)
        return newest[0].k.get("default", -1.0) if newest else -1.0

    store.put_policy(STARTS_SHALLOW, 0, 1.0)
    async with HttpEngine(store) as engine, running(server.url) as loop:
        engine.ignores_names = True
        await eventually(lambda: measured_k() >= 4 and own_k(engine.page()) >= 4)
        engine.sources = [Source("code_hot", 16)]
        await eventually(lambda: 0 <= measured_k() < 0.5 and own_k(engine.page()) < 0.5)
        assert all(item.guidance is not None and item.guidance.static_k == 1 for item in engine.applied)
        versions = [item.version for item in engine.applied]
        assert versions == sorted(set(versions))
        gauge = f'specpilot_controller_k{{model_name="{MODEL}",pool="{POOL}",traffic_class="default"}} 0.'
        await eventually(lambda: gauge in loop._metrics.render().decode())
        newest = store.decisions(MODEL, POOL, 1)[0]
        assert any("survival" in band for band in newest.evidence["bands"].values())


async def test_redis_killed_and_back_empty(server: RedisServer, store: Store) -> None:
    async with HttpEngine(store) as engine, running(server.url) as loop:
        await eventually(lambda: len(engine.applied) >= 2)
        last = engine.applied[-1].version
        server.stop()
        ticks = loop.ticks
        await eventually(lambda: loop.ticks >= ticks + 3)
        server.start()
        await eventually(lambda: engine.applied[-1].version > last)


async def test_a_slow_engine_does_not_delay_the_other(server: RedisServer, store: Store) -> None:
    async with HttpEngine(store, "one") as slow, HttpEngine(store, "two", 1) as quick, running(server.url) as loop:
        slow.is_slow = True
        await eventually(lambda: len(quick.applied) >= 2)
        scraped_at = loop._collector.scraped_at
        assert scraped_at["one"] < scraped_at["two"]


async def test_a_wake_up_ticks_at_once(server: RedisServer, store: Store) -> None:
    async with running(server.url, interval_s=3600.0) as loop:
        await eventually(lambda: loop.ticks == 1)
        loop.wake()
        await eventually(lambda: loop.ticks == 2)


async def test_slow_ticks_do_not_cost_the_lease(
    server: RedisServer, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every tick takes longer than the lease lasts, which a thread of its own renews; schedules are published."""
    async with HttpEngine(store) as engine:
        decide = Decider.decide

        def slow(*arguments: object) -> object:
            time.sleep(TTL_S + 0.5)
            return decide(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(Decider, "decide", slow)
        async with running(server.url) as loop:
            await eventually(lambda: len(engine.applied) >= 1)
            fence = loop._leadership.lease.fence if loop._leadership.lease else None
            assert fence is not None
            assert store.acquire_lease("b", 1.0) is None


async def test_one_unreadable_document_hurts_only_itself(server: RedisServer, store: Store) -> None:
    for key in (redis_keys.POLICIES, redis_keys.CANARIES, redis_keys.FREEZES):
        store._redis.hset(key, "bad", "{nonsense")
    store._redis.hset(redis_keys.SCHEDULES, redis_keys.schedule_field(MODEL, POOL), "{nonsense")
    store._redis.sadd(redis_keys.ENGINES, "bad")
    store._redis.set(redis_keys.engine("bad"), "{}", px=60_000)
    async with HttpEngine(store) as engine, running(server.url):
        await eventually(lambda: len(engine.applied) >= 2)


def test_a_publication_wakes_the_engines_of_its_pool_only(server: RedisServer, store: Store) -> None:
    lease = store.acquire_lease("a", 30.0)
    assert lease is not None
    own, other = (store.changes(poll_s, (MODEL, pool)) for pool, poll_s in ((POOL, PATIENCE_S), ("another", 0.3)))
    assert (next(own), next(other)) == (None, None)
    store.publish_schedule(Schedule(MODEL, POOL, 1, 0.0, Guidance()), lease)
    assert next(own) == redis_keys.SCHEDULES
    assert next(other) is None
    own.close()  # type: ignore[attr-defined]
    other.close()  # type: ignore[attr-defined]


def test_a_pools_decisions_take_less_than_20_mb(store: Store) -> None:
    rig = simulate([Phase(12, [Source(kind, 3) for kind in ACCEPTANCE])])
    result = rig.seconds[-1].result
    schedule = Schedule(MODEL, POOL, 1, 0.0, result.guidance)
    for index in range(400):
        evidence = {**result.evidence, "scrape_age_s": index / 7}
        store.append_decision(
            Decision(1.0 + index, MODEL, POOL, Mode.ACT, "adaptive", True, index, schedule, evidence, {"default": 3.0}),
            is_lasting=index % 2 == 0,
        )
    used = sum(
        store._redis.memory_usage(key(MODEL, POOL), samples=0) for key in (redis_keys.decisions, redis_keys.history)
    )
    assert used / 400 * (redis_keys.DECISIONS_KEPT + redis_keys.HISTORY_KEPT) <= 20e6
    assert store.decisions(MODEL, POOL, 1)[0].evidence["decodes"] == result.evidence["decodes"]
