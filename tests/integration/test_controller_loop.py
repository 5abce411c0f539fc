"""The loop on a real Redis with engines behind real HTTP: steering, take-over, fencing, Redis gone and back."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace

import aiohttp
import pytest

from specpilot.bench.simulation.engine import MODEL, POOL
from specpilot.bench.simulation.loop import simulate
from specpilot.bench.simulation.traffic import ACCEPTANCE, Phase, Source
from specpilot.controller.law.control_law import ControlLaw
from specpilot.controller.lease import TTL_S, Leadership
from specpilot.controller.loop import ControlLoop
from specpilot.controller.metrics import ControllerMetrics
from specpilot.controller.pools import VALID_FOR_S
from specpilot.controller.publication import RENEW_S
from specpilot.controller.telemetry.scraper import Collector
from specpilot.policy import engine_metrics as names
from specpilot.policy import keys
from specpilot.policy.bands import row_of
from specpilot.policy.clock import SystemClock
from specpilot.policy.errors import FencedError
from specpilot.policy.model_policy import Mode, Policy
from specpilot.policy.records import Decision, Lease
from specpilot.policy.redis_store import RedisStore
from specpilot.policy.schedule import KRange, Schedule
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
            law=ControlLaw(),
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
"""With a gain to be found: engines begin with this K, until their own law knows something."""
OF_ACTIVE_K = re.compile(rf'^{names.ACTIVE_K}{{.*traffic_class="default".*}} (\S+)$', re.MULTILINE)


async def until(condition: object, timeout_s: float = 8.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # type: ignore[operator]  # noqa: ASYNC110 - watches a database
            await asyncio.sleep(0.05)


def own_k(engine: HttpEngine) -> float:
    """The mean K of the engine's running decodes, as it tells by itself."""
    found = OF_ACTIVE_K.search(engine.page())
    assert found is not None
    return float(found[1])


def estimated_k(store: RedisStore, band: int = 7) -> int:
    """K of a band by the newest decision: the controller's estimate of the engine's choice; -1 before the first."""
    newest = store.decisions(MODEL, POOL, 1)
    return row_of(newest[0].k, "default", band) if newest else -1


def is_settled(engine: HttpEngine, store: RedisStore) -> bool:
    """Whether the engine chose a deep K for a while, and the controller knows."""
    newest = store.decisions(MODEL, POOL, 10)
    are_known = len(newest) == 10 and all(item.reason in {"adaptive", "control_group"} for item in newest)
    return are_known and estimated_k(store) >= 4 and own_k(engine) >= 4


async def test_an_engine_is_steered_and_every_decision_recorded(server: RedisServer, store: RedisStore) -> None:
    store.put_policy(STARTS_SHALLOW, 0, 1.0)
    async with HttpEngine(store) as engine, running(server.url, "a") as loop:
        engine.ignores_names = True
        await until(lambda: is_settled(engine, store), 20.0)
        engine.sources = [Source("code_hot", 16)]
        await until(lambda: estimated_k(store, 0) == 0 and estimated_k(store, 2) == 0 and own_k(engine) < 0.5)
        assert {item.deepest_k for item in engine.applied} == {1}
        assert all(item.guidance is not None for item in engine.applied)
        versions = [item.version for item in engine.applied]
        assert versions == sorted(set(versions))
        assert all(item.valid_for_s == VALID_FOR_S for item in engine.applied)
        gauge = f'specpilot_controller_k{{band="0",model_name="{MODEL}",pool="{POOL}",traffic_class="default"}} 0.0'
        await until(lambda: gauge in loop._metrics.render().decode())
        newest = store.decisions(MODEL, POOL, 1)[0]
        assert any("survival" in band for band in newest.evidence["bands"].values())


async def test_an_unchanged_schedule_is_renewed_before_it_lapses(server: RedisServer, store: RedisStore) -> None:
    store.put_policy(Policy(model=MODEL, mode=Mode.OFF, static_k=2), 0, 1.0)
    async with HttpEngine(store) as engine, running(server.url, "a"):
        await until(lambda: len(engine.applied) >= 2)
        first, second = engine.applied[:2]
        assert {item.k for one in (first, second) for ranges in one.classes.values() for item in ranges} == {2}
        assert second.issued_at - first.issued_at <= RENEW_S + 0.5 <= VALID_FOR_S / 10


async def test_a_stand_by_takes_over_within_five_seconds_without_a_jump(server: RedisServer, store: RedisStore) -> None:
    store.put_policy(replace(STARTS_SHALLOW, control_group_ratio=0.0), 0, 1.0)  # a control group moves K by design
    async with HttpEngine(store) as engine, running(server.url, "a") as first, running(server.url, "b") as second:
        await until(lambda: is_settled(engine, store), 20.0)
        assert (first._leadership.lease is None) != (second._leadership.lease is None)
        leader, other = (first, second) if first._leadership.lease else (second, first)
        before, guidance = estimated_k(store), engine.applied[-1].guidance
        counted = engine.plant.by_source.copy()
        leader._leadership._stopped.set()  # its thread hangs
        leader._leadership.stand_down()
        stood_down = time.time()
        seen = len(engine.applied)
        await until(lambda: other._leadership.lease is not None, 5.0)
        await until(lambda: len(engine.applied) >= seen + 2)
        await until(lambda: sum(item.at > stood_down for item in store.decisions(MODEL, POOL, 100)) >= 3)
        taken = [item for item in store.decisions(MODEL, POOL, 100) if item.at > stood_down]
        assert {item.reason for item in taken} == {"adaptive"}
        assert {row_of(item.k, "default", 7) for item in taken} <= {before - 1, before, before + 1}
        [(decodes, verified)] = engine.plant.by_source - counted
        assert abs(verified / decodes - before) <= 1  # the engine's own K in the mean
        assert all(item.guidance == guidance for item in engine.applied[seen:])


async def test_a_deposed_leader_cannot_write_and_stands_down(server: RedisServer, store: RedisStore) -> None:
    async with HttpEngine(store) as engine, running(server.url, "a") as loop:
        await until(lambda: bool(engine.applied))
        old = loop._leadership.lease
        assert old is not None
        store._redis.delete(keys.LEASE)
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
        await until(lambda: len(quick.applied) >= 2)
        scraped_at = loop._collector.scraped_at
        assert scraped_at["one"] < scraped_at["two"]


async def test_a_wake_up_ticks_at_once(server: RedisServer, store: RedisStore) -> None:
    async with running(server.url, "a") as loop:
        loop._interval_s = 5.0
        await asyncio.sleep(0.5)
        ticks = loop.ticks
        loop.wake()
        await until(lambda: loop.ticks > ticks, 0.5)


async def test_slow_ticks_do_not_cost_the_lease(
    server: RedisServer, store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every tick takes longer than the lease lasts, which a thread of its own renews; schedules are published."""
    async with HttpEngine(store) as engine:
        decide = ControlLaw.decide

        def slow(*arguments: object) -> object:
            time.sleep(TTL_S + 0.5)
            return decide(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(ControlLaw, "decide", slow)
        async with running(server.url, "a") as loop:
            await until(lambda: len(engine.applied) >= 1, 15.0)
            fence = loop._leadership.lease.fence if loop._leadership.lease else None
            assert fence is not None
            assert store.acquire_lease("b", 1.0) is None


async def test_one_unreadable_document_hurts_only_itself(server: RedisServer, store: RedisStore) -> None:
    for key in (keys.POLICIES, keys.CANARIES, keys.FREEZES):
        store._redis.hset(key, "bad", "{nonsense")
    store._redis.hset(keys.SCHEDULES, keys.schedule_field(MODEL, POOL), "{nonsense")
    store._redis.sadd(keys.ENGINES, "bad")
    store._redis.set(keys.engine("bad"), "{}", px=60_000)
    async with HttpEngine(store) as engine, running(server.url, "a"):
        await until(lambda: len(engine.applied) >= 2)


def test_a_publication_wakes_the_engines_of_its_pool_only(server: RedisServer, store: RedisStore) -> None:
    lease = store.acquire_lease("a", 30.0)
    assert lease is not None
    own, other = (store.changes(0.3, (MODEL, pool)) for pool in (POOL, "another"))
    assert (next(own), next(other)) == (None, None)
    rows = {"default": (KRange(1, 4, 2),)}
    store.publish_schedule(Schedule(MODEL, POOL, 1, 0.0, 60.0, 0.0, rows), lease)
    assert next(own) == keys.SCHEDULES
    assert next(other) is None
    own.close()  # type: ignore[attr-defined]
    other.close()  # type: ignore[attr-defined]


def test_a_pools_decisions_take_less_than_20_mb(store: RedisStore) -> None:
    rig = simulate([Phase(12, [Source(kind, 3) for kind in ACCEPTANCE])])
    result = rig.seconds[-1].result
    rows = Schedule(MODEL, POOL, 1, 0.0, 60.0, 0.005, result.proposed, guidance=result.guidance)
    assert rows.guidance is not None
    for index in range(200):
        evidence = {**result.evidence, "scrape_age_s": index / 7}
        store.append_decision(
            Decision(1.0 + index, MODEL, POOL, Mode.ACT, "adaptive", True, index, rows, 0.1, evidence, {"default": 3}),
            is_lasting=True,
        )
    used = sum(store._redis.memory_usage(key(MODEL, POOL), samples=0) for key in (keys.decisions, keys.history))
    assert used / 400 * (keys.DECISIONS_KEPT + keys.HISTORY_KEPT) <= 20e6
    assert store.decisions(MODEL, POOL, 1)[0].evidence["decodes"] == result.evidence["decodes"]
