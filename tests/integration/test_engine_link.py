"""The engine's link on a real Redis: registration, schedules, and what happens when the server goes and comes."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest

from specpilot.engine_adapter.agent import link as link_module
from specpilot.engine_adapter.agent.agent import is_stalled
from specpilot.engine_adapter.agent.link import HEARTBEAT_S, POLL_S, EngineLink
from specpilot.engine_adapter.plan.speculation_control import Source, SpeculationControl
from specpilot.policy import redis_keys
from specpilot.policy.clock import SystemClock
from specpilot.policy.codec import encode
from specpilot.policy.records import EngineRecord, Lease
from specpilot.policy.redis_store import RedisStore
from specpilot.policy.schedule import KRange, Schedule
from tests.support.redis_server import RedisServer

RECORD = EngineRecord("e1", "http://e1", "m", "p", 7, 3, 32, "eagle3", "0.32.0", "0.1.0", 1.0, 1.0)


@contextmanager
def started(server: RedisServer, hold_s: float = 0.0) -> Iterator[SpeculationControl]:
    """An engine's control, and the link that follows `server` for it."""
    subject = SpeculationControl("m", "p", k_max=7, static_k=3, max_running=32, hold_s=hold_s)
    link = EngineLink(RedisStore(server.url), subject, RECORD, SystemClock())
    thread = threading.Thread(target=link.run)
    thread.start()
    try:
        yield subject
    finally:
        link.stop()
        thread.join(10.0)
    assert not thread.is_alive()


@pytest.fixture
def control(server: RedisServer) -> Iterator[SpeculationControl]:
    with started(server) as subject:
        yield subject


def lead(server: RedisServer) -> tuple[RedisStore, Lease]:
    store = RedisStore(server.url)
    lease = store.acquire_lease("controller", 30.0)
    assert lease is not None
    return store, lease


def schedule(version: int, k: int, pool: str = "p") -> Schedule:
    return Schedule("m", pool, version, time.time(), 60.0, 0.0, {"default": (KRange(1, 32, k),)})


def until(condition: Callable[[], bool], seconds: float) -> float:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds
        time.sleep(0.005)
    return time.monotonic() - began


def test_an_engine_registers_follows_and_reports_its_version(server: RedisServer, control: SpeculationControl) -> None:
    store, lease = lead(server)
    until(lambda: len(store.engines()) == 1, 3.0)
    store.publish_schedule(schedule(1, 5), lease)
    assert until(lambda: control.version == 1, 3.0) < 1.0
    assert control.table(time.monotonic()).k("code", 0, 4) == 5
    until(lambda: store.engines()[0].schedule_version == 1, 3.0)


def test_each_schedule_is_read_once(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, control: SpeculationControl
) -> None:
    monkeypatch.setattr(link_module, "READ_S", 60.0)
    store, lease = lead(server)

    def reads() -> int:
        return int(store._redis.info("commandstats").get("cmdstat_hget", {}).get("calls", 0))

    until(lambda: reads() == 1, 3.0)  # the first look, which follows the first heartbeat
    for version in (1, 2):
        store.publish_schedule(schedule(version, 5), lease)
        until(lambda version=version: control.version == version, 3.0)  # type: ignore[misc]
        time.sleep(2 * POLL_S)
    published = 2  # the script that publishes reads the stored one, too
    assert reads() == 1 + 2 + published


def test_a_schedule_that_was_not_announced_is_found(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, control: SpeculationControl
) -> None:
    monkeypatch.setattr(link_module, "READ_S", 0.2)
    store, _ = lead(server)
    until(lambda: len(store.engines()) == 1, 3.0)
    store._redis.hset(redis_keys.SCHEDULES, redis_keys.schedule_field("m", "p"), encode(schedule(1, 5)))
    until(lambda: control.version == 1, 3.0)


def test_a_schedule_that_does_not_fit_leaves_the_running_one(server: RedisServer, control: SpeculationControl) -> None:
    store, lease = lead(server)
    store.publish_schedule(schedule(1, 5), lease)
    until(lambda: control.version == 1, 3.0)
    store.publish_schedule(schedule(2, 8), lease)
    time.sleep(1.0)
    assert control.version == 1
    store.publish_schedule(schedule(3, 2), lease)
    until(lambda: control.version == 3, 3.0)


def test_another_pools_schedule_is_not_ours(server: RedisServer, control: SpeculationControl) -> None:
    store, lease = lead(server)
    store.publish_schedule(schedule(1, 5, pool="other"), lease)
    time.sleep(1.0)
    assert control.version == 0


def test_a_restarted_and_emptied_server_loses_nothing_that_matters(
    server: RedisServer, control: SpeculationControl
) -> None:
    store, lease = lead(server)
    store.publish_schedule(schedule(4, 5), lease)
    until(lambda: control.version == 4, 3.0)
    server.stop()
    time.sleep(1.0)
    assert control.table(time.monotonic()).k("default", 0, 1) == 5
    server.start()
    until(lambda: len(store.engines()) == 1, 5.0)
    assert store.engines()[0].schedule_version == 4
    _, lease = lead(server)
    store.publish_schedule(schedule(3, 1), lease)
    time.sleep(1.0)
    assert control.version == 4
    store.publish_schedule(schedule(5, 6), lease)
    until(lambda: control.version == 5, 3.0)


def test_a_stopped_engine_leaves_the_list_at_once(server: RedisServer) -> None:
    subject = SpeculationControl("m", "p", k_max=7, static_k=3, max_running=32)
    link = EngineLink(RedisStore(server.url), subject, replace(RECORD, engine_id="e2"), SystemClock())
    thread = threading.Thread(target=link.run)
    thread.start()
    store = RedisStore(server.url)
    until(lambda: len(store.engines()) == 1, 3.0)
    link.stop()
    assert store.engines() == []
    thread.join(10.0)


def test_a_draining_engine_says_so_at_once_and_again_with_each_heartbeat(server: RedisServer) -> None:
    store = RedisStore(server.url)
    subject = SpeculationControl("m", "p", k_max=7, static_k=3, max_running=32)
    link = EngineLink(RedisStore(server.url), subject, RECORD, SystemClock())
    thread = threading.Thread(target=link.run)
    thread.start()
    try:
        until(lambda: len(store.engines()) == 1, 3.0)
        assert not store.engines()[0].draining
        changes = store.changes(5.0)
        assert next(changes) is None
        link.begin_drain()
        assert until(lambda: store.engines()[0].draining, 3.0) < HEARTBEAT_S
        assert next(changes) == redis_keys.ENGINES  # gateways need not wait for their next poll
        beat_at = store.engines()[0].heartbeat_at
        until(lambda: store.engines()[0].heartbeat_at > beat_at, 3.0)
        assert store.engines()[0].draining
    finally:
        link.stop()
        thread.join(10.0)


def test_a_heartbeat_under_way_does_not_bring_a_stopped_engine_back(server: RedisServer) -> None:
    began, may_go_on = threading.Event(), threading.Event()

    class SlowStore(RedisStore):
        def heartbeat(self, record: EngineRecord, ttl_s: float) -> None:
            began.set()
            assert may_go_on.wait(10.0)
            super().heartbeat(record, ttl_s)

    subject = SpeculationControl("m", "p", k_max=7, static_k=3, max_running=32)
    link = EngineLink(SlowStore(server.url), subject, RECORD, SystemClock())
    threads = [threading.Thread(target=link.run), threading.Thread(target=link.stop)]
    threads[0].start()
    assert began.wait(10.0)
    threads[1].start()
    threads[1].join(0.3)
    may_go_on.set()
    for thread in threads:
        thread.join(10.0)
    assert RedisStore(server.url).engines() == []


def test_an_engine_that_starts_leaves_an_expired_schedule_and_takes_the_next(server: RedisServer) -> None:
    store, lease = lead(server)
    store.publish_schedule(replace(schedule(3, 5), issued_at=time.time() - 61.0), lease)
    with started(server) as control:
        until(lambda: len(store.engines()) == 1, 3.0)
        time.sleep(1.5)
        assert control.version == 0
        skewed = replace(schedule(4, 2), issued_at=time.time() - 3600.0)  # of a controller whose clock is slow
        store.publish_schedule(skewed, lease)
        until(lambda: control.version == 4, 3.0)
        assert control.table(time.monotonic()).k("default", 0, 1) == 2


def test_an_engine_that_starts_takes_a_schedule_that_is_still_valid(server: RedisServer) -> None:
    store, lease = lead(server)
    store.publish_schedule(replace(schedule(3, 5), issued_at=time.time() - 30.0), lease)
    with started(server) as control:
        until(lambda: control.version == 3, 3.0)


def test_an_engine_that_starts_while_no_controller_runs_holds_the_last_schedule(server: RedisServer) -> None:
    store, lease = lead(server)
    store.publish_schedule(replace(schedule(3, 5), issued_at=time.time() - 61.0), lease)
    with started(server, hold_s=3600.0) as control:
        until(lambda: control.version == 3, 3.0)
        now = time.monotonic()
        assert (control.table(now).source, control.table(now).k("default", 0, 1)) == (Source.HELD, 5)
        assert control.table(now + 3600.0).source is Source.EXPIRED


def test_an_engine_whose_model_stands_still_says_so_at_its_next_heartbeat(server: RedisServer) -> None:
    subject, found = SpeculationControl("m", "p", k_max=7, static_k=3, max_running=32), [False]
    link = EngineLink(RedisStore(server.url), subject, RECORD, SystemClock(), lambda: found[0])
    thread = threading.Thread(target=link.run)
    thread.start()
    try:
        store = RedisStore(server.url)
        until(lambda: len(store.engines()) == 1, 3.0)
        for is_stalled in (True, False):
            found[0] = is_stalled
            until(lambda wanted=is_stalled: store.engines()[0].stalled is wanted, 2 * HEARTBEAT_S + 1)  # type: ignore[misc]
    finally:
        link.stop()
        thread.join(10.0)


@pytest.mark.parametrize(
    ("has_requests", "waiting_s", "expected"), [(True, 61, True), (True, 59, False), (False, 61, False)]
)
def test_a_step_that_does_not_end_is_a_stall(*, has_requests: bool, waiting_s: float, expected: bool) -> None:
    steps = SimpleNamespace(waiting_s=lambda now: now - 100.0)
    scheduler = SimpleNamespace(has_unfinished_requests=lambda: has_requests, steps=steps)
    assert is_stalled(scheduler, 100.0 + waiting_s) is expected
