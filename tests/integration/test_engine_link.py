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
from specpilot.policy.questions import Answer, Question
from specpilot.policy.records import EngineRecord, Lease
from specpilot.policy.schedule import Cause, Guidance, Override, Schedule
from specpilot.policy.store import Store
from tests.support import stack
from tests.support.linked_engine import RECORD, linked, new_control
from tests.support.patience import PATIENCE_S
from tests.support.redis_server import RedisServer


class Control(SpeculationControl):
    """One that notes the version of each schedule that it was offered, and the one that is in force then."""

    def __init__(self) -> None:
        super().__init__("m", "p", k_max=7, static_k=3, max_running=32, engine_id="e1")
        self.offers: list[tuple[int, int]] = []

    def offer(self, schedule: Schedule, now: float) -> None:
        try:
            super().offer(schedule, now)
        finally:
            self.offers.append((schedule.version, self.version))


@contextmanager
def started(url: str, answer: Callable[[Question], Answer] | None = None) -> Iterator[Control]:
    """An engine's control, and the link that follows the server at `url` for it."""
    subject = Control()
    with linked(Store(url), subject, answer=answer):
        yield subject


@pytest.fixture
def control(server: RedisServer) -> Iterator[Control]:
    with started(server.url) as subject:
        yield subject


def lead(server: RedisServer) -> tuple[Store, Lease]:
    store = Store(server.url, PATIENCE_S)
    lease = store.acquire_lease("controller", 30.0)
    assert lease is not None
    return store, lease


def schedule(version: int, k: int, pool: str = "p") -> Schedule:
    return Schedule("m", pool, version, time.time(), Guidance(override=Override(k)))


def hgets(store: Store) -> int:
    """How often a field of a hash was read, as each schedule is."""
    return int(store._redis.info("commandstats").get("cmdstat_hget", {}).get("calls", 0))


def until(condition: Callable[[], bool]) -> None:
    stack.until(condition, every=0.005)


def test_an_engine_registers_follows_and_reports_its_version(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, control: Control
) -> None:
    monkeypatch.setattr(link_module, "READ_S", 3600.0)  # so that it follows what is announced, at once
    store, lease = lead(server)
    until(lambda: len(store.engines()) == 1)
    store.publish_schedule(schedule(1, 5), lease)
    until(lambda: control.version == 1)
    assert control.table(time.monotonic()).k("code") == 5
    until(lambda: store.engines()[0].schedule_version == 1)


def test_each_schedule_is_read_once(server: RedisServer, monkeypatch: pytest.MonkeyPatch, control: Control) -> None:
    monkeypatch.setattr(link_module, "READ_S", 3600.0)
    store, lease = lead(server)

    def publish(version: int) -> int:
        store.publish_schedule(schedule(version, 5), lease)
        until(lambda: control.version == version)
        time.sleep(2 * POLL_S)
        return hgets(store)

    before = publish(1)
    published = 2  # to decide, and in the script that compares
    assert publish(2) == before + published + 1


def test_a_schedule_that_was_not_announced_is_found(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, control: Control
) -> None:
    monkeypatch.setattr(link_module, "READ_S", 0.2)
    store, _ = lead(server)
    until(lambda: len(store.engines()) == 1)
    store._redis.hset(redis_keys.SCHEDULES, redis_keys.schedule_field("m", "p"), encode(schedule(1, 5)))
    until(lambda: control.version == 1)


def test_a_schedule_that_does_not_fit_leaves_the_running_one(server: RedisServer, control: Control) -> None:
    store, lease = lead(server)
    store.publish_schedule(schedule(1, 5), lease)
    until(lambda: control.version == 1)
    anothers = encode(replace(schedule(2, 5), model="another"))
    store._redis.hset(redis_keys.SCHEDULES, redis_keys.schedule_field("m", "p"), anothers)
    store._redis.publish(redis_keys.pool_changes("m", "p"), redis_keys.SCHEDULES)
    until(lambda: (2, 1) in control.offers)
    store.publish_schedule(schedule(3, 2), lease)
    until(lambda: control.version == 3)


def test_another_pools_schedule_is_not_ours(server: RedisServer, control: Control) -> None:
    store, lease = lead(server)
    store.publish_schedule(schedule(2, 5, pool="other"), lease)
    store.publish_schedule(schedule(1, 5), lease)
    until(lambda: control.version == 1)
    assert control.offers == [(1, 1)]


def test_a_restarted_and_emptied_server_loses_nothing_that_matters(
    server: RedisServer, control: Control, caplog: pytest.LogCaptureFixture
) -> None:
    store, lease = lead(server)
    store.publish_schedule(schedule(4, 5), lease)
    until(lambda: control.version == 4)
    server.stop()
    until(lambda: "the schedule in force stays" in caplog.text)
    assert control.table(time.monotonic()).k("default") == 5
    server.start()
    until(lambda: len(store.engines()) == 1)
    assert store.engines()[0].schedule_version == 4
    _, lease = lead(server)
    reads = hgets(store)
    store.publish_schedule(schedule(3, 1), lease)
    until(lambda: hgets(store) >= reads + 2)  # by the script that publishes, and by the link
    store.publish_schedule(schedule(5, 6), lease)
    until(lambda: control.version == 5)
    assert control.offers == [(4, 4), (5, 5)]


def test_a_stopped_engine_leaves_the_list_at_once(server: RedisServer) -> None:
    with linked(Store(server.url)) as link:
        link.stop()
        assert Store(server.url, PATIENCE_S).engines() == []


def test_a_draining_engine_says_so_at_once_and_again_with_each_heartbeat(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(server.url, PATIENCE_S)
    with linked(Store(server.url)) as link:
        assert not store.engines()[0].draining
        changes = store.changes(PATIENCE_S)
        assert next(changes) is None
        monkeypatch.setattr(link_module, "HEARTBEAT_S", 3600.0)  # none is due, so it is said at once
        link.begin_drain()
        until(lambda: store.engines()[0].draining)
        assert next(changes) == redis_keys.ENGINES  # gateways need not wait for their next poll
        monkeypatch.setattr(link_module, "HEARTBEAT_S", HEARTBEAT_S)
        beat_at = store.engines()[0].heartbeat_at
        until(lambda: store.engines()[0].heartbeat_at > beat_at)
        assert store.engines()[0].draining


def test_a_heartbeat_under_way_does_not_bring_a_stopped_engine_back(server: RedisServer) -> None:
    began, may_go_on = threading.Event(), threading.Event()

    class SlowStore(Store):
        def heartbeat(self, record: EngineRecord, ttl_s: float) -> None:
            began.set()
            assert may_go_on.wait(PATIENCE_S)
            super().heartbeat(record, ttl_s)

    link = EngineLink(SlowStore(server.url), new_control(), RECORD, SystemClock())
    threads = [threading.Thread(target=link.run), threading.Thread(target=link.stop)]
    threads[0].start()
    assert began.wait(PATIENCE_S)
    threads[1].start()
    threads[1].join(0.3)
    may_go_on.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert Store(server.url, PATIENCE_S).engines() == []


def test_an_engine_that_starts_takes_the_last_schedule_however_old_it_is(server: RedisServer) -> None:
    """Its window has ended, though, and so has an override with an end."""
    store, lease = lead(server)
    frozen = Guidance(override=Override(2, Cause.FROZEN, time.time() - 100.0))
    old = replace(schedule(3, 5), issued_at=time.time() - 1e6)
    store.publish_schedule(
        replace(old, drawn=("e1",), drawn_until=old.issued_at + 4.0, drawn_guidance=Guidance(override=Override(0))),
        lease,
    )
    with started(server.url) as control:
        until(lambda: control.version == 3)
        now = time.monotonic()
        assert (control.table(now).source, control.table(now).k("default")) == (Source.FIXED, 5)
        skewed = replace(schedule(4, 2), issued_at=time.time() - 3600.0)  # of a controller whose clock is slow
        store.publish_schedule(skewed, lease)
        until(lambda: control.version == 4)
        assert control.age_s(time.monotonic()) < 3600.0  # type: ignore[operator]
    store.publish_schedule(replace(old, version=5, guidance=frozen), lease)
    with started(server.url) as control:
        until(lambda: control.version == 5)
        assert control.override(time.monotonic()) is None


def asked(number: int, *engines: str) -> Question:
    return Question(f"q{number}", "explain", engines)


def test_a_question_is_answered_once_by_each_engine_that_is_asked(server: RedisServer) -> None:
    seen: list[str] = []

    def answer(question: Question) -> Answer:
        seen.append(question.question_id)
        return Answer(question.question_id, "e1", decodes=len(seen))

    store, _ = lead(server)
    with started(server.url, answer):
        until(lambda: len(store.engines()) == 1)
        for number, engines in enumerate((("other",), ("e1", "other"), ("e1",))):
            store.put_question("m", "p", asked(number, *engines))
        store.put_question("m", "another", asked(9, "e1"))
        until(lambda: bool(store.answers(asked(2, "e1"))))
        time.sleep(2 * POLL_S)
        assert sorted(seen) == ["q1", "q2"]
        assert store.answers(asked(1, "e1", "other")).keys() == {"e1"}


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_question_is_found_without_an_announcement_and_an_old_one_has_expired(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, *, is_lost: bool
) -> None:
    monkeypatch.setattr(redis_keys, "QUESTIONS_EXPIRE_MS", 100_000 if is_lost else 50)
    store, _ = lead(server)
    question = asked(1, "e1")
    store.put_question("m", "p", question)  # before there is an engine that could hear of it
    time.sleep(0.1)
    with started(server.url, lambda question: Answer(question.question_id, "e1")):
        until(lambda: len(store.engines()) == 1)
        if is_lost:
            until(lambda: store.answers(question) == {"e1": Answer("q1", "e1")})
        assert bool(store.questions("m", "p")) is is_lost


def test_an_engine_whose_model_stands_still_or_that_has_a_limit_says_so_at_its_next_heartbeat(
    server: RedisServer,
) -> None:
    store, found = Store(server.url, PATIENCE_S), [False]
    how = {"is_stalled": lambda: found[0], "running_limit": lambda: 5 if found[0] else None}
    with linked(Store(server.url), **how):
        for is_stalled in (True, False):
            found[0] = is_stalled
            until(lambda wanted=is_stalled: store.engines()[0].stalled is wanted)  # type: ignore[misc]
            assert store.engines()[0].running_limit == (5 if is_stalled else None)


@pytest.mark.parametrize(
    ("has_requests", "waiting_s", "expected"), [(True, 61, True), (True, 59, False), (False, 61, False)]
)
def test_a_step_that_does_not_end_is_a_stall(*, has_requests: bool, waiting_s: float, expected: bool) -> None:
    steps = SimpleNamespace(waiting_s=lambda now: now - 100.0)
    scheduler = SimpleNamespace(has_unfinished_requests=lambda: has_requests, steps=steps)
    assert is_stalled(scheduler, 100.0 + waiting_s) is expected
