"""A loop in trouble: a law that fails, a Redis that is gone or full, a lease that is lost, a tick that hangs."""

import asyncio
import logging
from dataclasses import replace

import pytest
from fastapi.testclient import TestClient

from specpilot.controller import lease
from specpilot.controller.app import create_app
from specpilot.controller.decision.context import PoolContext, TickResult
from specpilot.controller.decision.decider import Decider
from specpilot.controller.loop import HANG_S, ControlLoop
from specpilot.controller.recording.explanation import explain
from specpilot.controller.settings import ControllerSettings
from specpilot.policy.errors import StoreUnavailableError
from specpilot.policy.freeze import Freeze, Hold
from specpilot.policy.records import Lease
from specpilot.policy.schedule import Cause, Override
from specpilot.policy.store import StoreMemory
from tests.simulation.engine import MODEL, POOL
from tests.support.controller_store import MemoryStore
from tests.support.gateway_server import eventually
from tests.support.loop_rig import Rig, registered, text


async def test_what_fails_in_one_pool_does_not_stop_the_others(
    rig: Rig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.store.heartbeat(replace(registered("two", 7), pool="another"), 60.0)
    decide = Decider.decide

    def failing(law: Decider, context: PoolContext, now: float, at: float) -> TickResult:
        if context.pool == "another":
            raise IndexError("nobody foresaw this")
        return decide(law, context, now, at)

    monkeypatch.setattr(Decider, "decide", failing)
    await rig.tick(3)
    assert (MODEL, POOL) in rig.store.published
    assert (MODEL, "another") not in rig.store.published
    assert rig.loop.ticks == 3
    assert sum("another: not steered in this tick" in record.message for record in caplog.records) == 3


@pytest.mark.parametrize("hold", Hold)
async def test_a_pool_in_which_the_law_fails_can_be_frozen(
    rig: Rig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, hold: Hold
) -> None:
    await rig.tick(20)
    before = rig.store.published[MODEL, POOL]

    def failing(*_: object) -> TickResult:
        raise IndexError("nobody foresaw this")

    monkeypatch.setattr(Decider, "decide", failing)
    await rig.tick(7)
    assert rig.store.published[MODEL, POOL] == before
    rig.store.frozen[MODEL] = Freeze(MODEL, hold, 0.0)
    await rig.tick(8)
    now = rig.store.published[MODEL, POOL]
    assert now.version >= before.version + 2  # and renewed
    frozen = Override(None if hold is Hold.CURRENT else 3, Cause.FROZEN)
    assert now.guidance == replace(before.guidance, override=frozen)
    assert rig.store.log[-1].reason == "frozen"
    assert "FROZEN" in text(explain(rig.store.log[-1])).upper()
    assert sum("the law fails; the freeze's schedule is published" in record.message for record in caplog.records) == 8
    assert rig.metrics.registry.get_sample_value("specpilot_controller_tick_errors_total") == 15
    rig.store.published.clear()
    await rig.tick()
    assert rig.override == frozen


async def test_without_redis_it_goes_on_and_says_so_once(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await rig.tick(8)
    version = rig.store.published[MODEL, POOL].version
    rig.store.is_down = True
    await rig.tick(5)
    assert rig.store.published[MODEL, POOL].version == version
    assert rig.loop.ticks == 13
    rig.store.is_down = False
    await rig.tick(2)
    assert rig.store.published[MODEL, POOL].version > version
    said = [record.message for record in caplog.records]
    assert sum("going on with the last known state" in line for line in said) == 1
    assert sum("Redis answers again" in line for line in said) == 1


async def test_a_full_redis_is_said_once_and_is_not_a_silent_one(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await rig.tick(8)
    published = rig.store.published[MODEL, POOL]
    rig.store.is_full = True
    await rig.tick(5)
    assert rig.store.published[MODEL, POOL] == published
    assert rig.metrics.registry.get_sample_value("specpilot_controller_store_up") == 1.0
    rig.store.is_full = False
    await rig.tick(3)
    assert rig.store.published[MODEL, POOL].version > published.version
    said = [record.message for record in caplog.records]
    assert sum("schedules stay as they are: Redis is full (maxmemory)" in line for line in said) == 1
    assert sum("Redis takes schedules and decisions again" in line for line in said) == 1
    assert not any("last known state" in line or "answers again" in line for line in said)


def memory_shown(rig: Rig) -> list[float | None]:
    name = "specpilot_controller_redis_memory_{}_bytes"
    return [rig.metrics.registry.get_sample_value(name.format(kind)) for kind in ("used", "max")]


async def test_how_full_redis_is_is_asked_now_and_then_and_shown_while_it_is_known(rig: Rig) -> None:
    rig.store.used = StoreMemory(900, 1000)
    await rig.tick(5)  # a second each
    assert (memory_shown(rig), rig.store.looks) == ([900.0, 1000.0], 1)
    rig.store.used = StoreMemory(950, 0)
    await rig.tick()
    assert (memory_shown(rig), rig.store.looks) == ([950.0, 0.0], 2)
    rig.store.is_down = True
    await rig.tick()
    assert memory_shown(rig) == [None, None]
    rig.store.is_down, rig.store.used = False, None  # a service that does not state it
    await rig.tick(6)
    assert memory_shown(rig) == [None, None]


async def test_a_redis_that_does_not_say_how_full_it_is_answers_all_the_same(
    rig: Rig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: MemoryStore) -> None:
        raise StoreUnavailableError("Redis refused a command: no permissions to run the 'info' command")

    monkeypatch.setattr(MemoryStore, "memory", refuse)
    await rig.tick(7)
    assert (MODEL, POOL) in rig.store.published
    assert rig.metrics.registry.get_sample_value("specpilot_controller_store_up") == 1.0
    assert memory_shown(rig) == [None, None]
    assert "refused a command" not in caplog.text


async def test_a_deposed_leader_stands_down(rig: Rig) -> None:
    await rig.tick()
    assert rig.leadership.lease is not None
    rig.store.fence += 1
    rig.store.leader = Lease("other", rig.store.fence)
    before = rig.store.published[MODEL, POOL]
    await rig.tick(3)
    assert rig.leadership.lease is None
    assert rig.store.published[MODEL, POOL] == before


async def test_a_loop_that_hangs_is_seen_and_leaves_its_lease(rig: Rig) -> None:
    await rig.tick()
    assert not rig.loop.is_hanging
    rig.clock.at += HANG_S + 5
    assert rig.loop.is_hanging
    await rig.loop.tick()
    assert not rig.loop.is_hanging


async def test_the_lease_of_a_loop_that_hangs_runs_out(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(lease, "RENEW_S", 0.005)
    monkeypatch.setattr(rig.loop, "tick", hang)
    running = asyncio.create_task(rig.loop.run())
    await eventually(lambda: rig.leadership.lease is not None)
    rig.clock.at += HANG_S + 5
    await eventually(lambda: rig.leadership.lease is None)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_a_controller_whose_loop_hangs_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    async def tick_once(loop: ControlLoop) -> None:
        if loop.ticks:
            await asyncio.Event().wait()
        loop.ticks = 1

    monkeypatch.setattr(ControlLoop, "tick", tick_once)
    rig = Rig.new()
    settings = ControllerSettings(redis_url="redis://unused", trust_this_machine=True)
    with TestClient(create_app(settings, rig.store, rig.clock)) as client:
        assert client.get("/ready").status_code == 200
        rig.clock.at += HANG_S + 5
        found = client.get("/ready")
    assert (found.status_code, "has not ended a tick" in found.json()["problem"]) == (503, True)
