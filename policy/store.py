"""The shared state: documents in Redis, the leader's lease, and announcements of changes.

All calls block for at most the store's time-out. No request path calls the store: the gateway and the engines read a
snapshot that a background thread keeps. Every call may raise `StoreUnavailableError`.

Fencing: a counter grows with every change of leader, and a schedule is accepted only from the lease with its latest
value. So a leader that was suspended while another took over cannot overwrite its successor's schedules. Works on any
Redis from 6.0 on, as one server, behind Sentinel or as a cluster: the keys of one command, script or transaction share
a hash tag.

A server that has reached `maxmemory` refuses commands that need memory. Reads go on. The leader's lease and the stored
records of engines and gateways are renewed unchanged. All other writes raise `StoreFullError`.
"""

import logging
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from specpilot.policy import redis_keys, redis_scripts
from specpilot.policy.api_key import GatewayUsage
from specpilot.policy.codec import decode_each, encode, name_of
from specpilot.policy.errors import (
    InvalidDocumentError,
    StoreRefusedError,
    StoreUnavailableError,
    VersionConflictError,
)
from specpilot.policy.operator_documents import OperatorDocuments
from specpilot.policy.questions import Answer, Question
from specpilot.policy.records import Decision, EngineRecord, Lease
from specpilot.policy.redis_connection import connect, guarded, memory_of_each, run_id_of, translated
from specpilot.policy.redis_dials import Dials
from specpilot.policy.redis_documents import Place, version_of
from specpilot.policy.redis_rights import missing
from specpilot.policy.redis_url import parse
from specpilot.policy.schedule import Schedule

_log = logging.getLogger(__name__)
_EPOCH_CHECK_S = 0.5
"""Longest time, in seconds, after which a subscription ends when another connection has found a changed server."""


class StoreMemory(NamedTuple):
    """The bytes that a server uses, and its limit; 0: no limit."""

    used_bytes: int
    max_bytes: int

    @property
    def used_ratio(self) -> float:
        """Used bytes over the limit; 0 without a limit."""
        return self.used_bytes / self.max_bytes if self.max_bytes else 0.0


@guarded
class Store(OperatorDocuments):
    """The shared state on a Redis server, behind Sentinel, on a cluster, or on a compatible service."""

    def __init__(self, url: str, timeout_s: float = 0.5) -> None:
        """Connect lazily to `url`, see `policy.redis_url`.

        `timeout_s` bounds connecting and every answer. Raises `InvalidDocumentError` for a malformed URL.
        """
        address = parse(url)
        self._user = address.username
        self._dials = Dials()
        self._timeout_s = timeout_s
        self._unsubscribed: str | None = None
        super().__init__(lambda: connect(address, timeout_s, self._dials))

    def close(self) -> None:
        """Close every connection."""
        if "_redis" in vars(self):
            self._redis.close()

    def ping(self) -> None:
        """Raise if the store does not answer."""
        self._redis.ping()

    def missing_rights(self) -> str | None:
        """Return a sentence that names the rights which the store's user lacks, and the remedy; `None` if none."""
        return missing(self._redis, self._user)

    def run_id(self) -> str | None:
        """Return the id of the server's process that holds the documents; `None` when it cannot be read."""
        try:
            with translated():
                return run_id_of(self._redis, redis_keys.API_KEYS)
        except StoreUnavailableError:
            return None

    def memory(self) -> StoreMemory | None:
        """Return the memory of the server (in a cluster, of the fullest one); `None` if a server does not report it."""
        reports = memory_of_each(self._redis)
        if not reports or any(name not in server for server in reports for name in ("used_memory", "maxmemory")):
            return None
        servers = [StoreMemory(server["used_memory"], server["maxmemory"]) for server in reports]
        return max(servers, key=lambda server: (server.used_ratio, server.used_bytes))

    def schedule(self, model: str, pool: str) -> Schedule | None:
        """Return the schedule in force for a pool; `None` before the first."""
        return self._document(Schedule, Place(redis_keys.SCHEDULES, redis_keys.schedule_field(model, pool)))

    def schedules(self) -> Sequence[Schedule]:
        """Return the schedule of every pool, of those that can be read."""
        return self._documents(Schedule, "the schedules", redis_keys.SCHEDULES)

    def remove_schedule(self, model: str, pool: str, lease: Lease) -> None:
        """Remove the schedule of a pool that is gone; `FencedError` as `publish_schedule`."""
        place = Place(redis_keys.SCHEDULES, redis_keys.schedule_field(model, pool))
        self._change([], lambda: {place: b""}, lease)

    def publish_schedule(self, schedule: Schedule, lease: Lease) -> None:
        """Write and announce `schedule`.

        Raises `FencedError` when another controller has led since `lease`, `VersionConflictError` when the stored
        version is not older.
        """
        place = Place(redis_keys.SCHEDULES, redis_keys.schedule_field(schedule.model, schedule.pool))

        def decide(stored: bytes | None) -> Mapping[Place, bytes]:
            try:
                version = version_of(stored)
            except InvalidDocumentError:
                version = 0  # nobody can read it
            if version >= schedule.version:
                raise VersionConflictError(f"the schedule of {place.field}", schedule.version - 1, version)
            return {place: encode(schedule)}

        self._change([place], decide, lease)
        self._announce(redis_keys.SCHEDULES, redis_keys.pool_changes(schedule.model, schedule.pool))

    def engines(self) -> Sequence[EngineRecord]:
        """Return the engines whose heartbeat is fresh and whose record can be read, in order of id."""
        return self._present(EngineRecord, redis_keys.ENGINES, redis_keys.engine)

    def heartbeat(self, record: EngineRecord, ttl_s: float) -> None:
        """Register an engine or renew it for `ttl_s` seconds."""
        key = redis_keys.engine(record.engine_id)
        is_new = self._renew(redis_keys.ENGINES, record.engine_id, key, record, ttl_s)
        if is_new or record.draining or record.stalled or record.running_limit is not None:
            self._announce(redis_keys.ENGINES)

    def remove_engine(self, engine_id: str) -> None:
        """Remove an engine from the list at once."""
        self._redis.delete(redis_keys.engine(engine_id))  # no transaction: a full server would refuse it
        self._redis.srem(redis_keys.ENGINES, engine_id)
        self._announce(redis_keys.ENGINES)

    def put_question(self, model: str, pool: str, question: Question) -> None:
        """Ask engines of a pool: write the question for some seconds and announce it."""
        key = redis_keys.questions(model, pool)
        pipe = self._redis.pipeline(transaction=True)
        pipe.hset(key, question.question_id, encode(question))
        pipe.pexpire(key, redis_keys.QUESTIONS_EXPIRE_MS)
        pipe.execute()
        self._announce(key, redis_keys.pool_changes(model, pool))

    def remove_question(self, model: str, pool: str, question_id: str) -> None:
        """Remove a question that needs no further answer."""
        self._redis.hdel(redis_keys.questions(model, pool), question_id)

    def questions(self, model: str, pool: str) -> Sequence[Question]:
        """Return the questions to engines of a pool that can be read."""
        return self._documents(Question, "the questions", redis_keys.questions(model, pool))

    def put_answer(self, answer: Answer) -> None:
        """Answer a question; the answer expires within seconds."""
        key = redis_keys.answer(answer.question_id, answer.engine_id)
        self._redis.set(key, encode(answer), px=redis_keys.QUESTIONS_EXPIRE_MS)

    def answers(self, question: Question) -> Mapping[str, Answer | InvalidDocumentError]:
        """Return by engine the answers so far, or the faults of their documents."""
        names = question.engines
        if not names:
            return {}
        stored = self._redis.mget([redis_keys.answer(question.question_id, name) for name in names])
        texts = {name.encode(): text for name, text in zip(names, stored, strict=True) if text is not None}
        return decode_each(Answer, texts)

    def append_decision(self, decision: Decision, *, is_lasting: bool) -> None:
        """Add `decision` to its pool's record. The latest decisions are kept; lasting ones are kept longer."""
        text = zlib.compress(encode(decision))
        pool = decision.model, decision.pool
        recent, history = redis_keys.decisions(*pool), redis_keys.history(*pool)
        key, most, most_bytes = (
            (history, redis_keys.HISTORY_KEPT, redis_keys.HISTORY_BYTES)
            if is_lasting
            else (recent, redis_keys.DECISIONS_KEPT, redis_keys.DECISIONS_BYTES)
        )
        pipe = self._redis.pipeline(transaction=False)
        pipe.xadd(key, {"decision": text}, maxlen=min(most, most_bytes // len(text)), approximate=True)
        if is_lasting:
            pipe.expire(recent, redis_keys.DECISIONS_EXPIRE_S)
            pipe.expire(history, redis_keys.DECISIONS_EXPIRE_S)
        pipe.execute()

    def decisions(self, model: str, pool: str, limit: int, before: float | None = None) -> Sequence[Decision]:
        """Return a pool's latest `limit` decisions, newest first; with `before`, those made before that time.

        Beyond the latest ones, lasting decisions follow.
        """
        newest = "+" if before is None else str(max(0, int(before * 1000) - 1))
        merged: list[Decision] = []
        for key in (redis_keys.decisions(model, pool), redis_keys.history(model, pool)):
            rows = self._redis.xrevrange(key, max=newest, min="-", count=limit)
            texts = {at: _decompressed(fields[b"decision"]) for at, fields in rows}
            merged += self._readable(Decision, "the decisions", texts).values()
        return sorted(merged, key=lambda decision: decision.at, reverse=True)[:limit]

    def exchange_usage(self, usage: GatewayUsage, ttl_s: float) -> Sequence[GatewayUsage]:
        """Publish `usage` for `ttl_s` seconds, and return the usage of every gateway, in order of id."""
        self._renew(redis_keys.GATEWAYS, usage.gateway_id, redis_keys.gateway(usage.gateway_id), usage, ttl_s)
        return self._present(GatewayUsage, redis_keys.GATEWAYS, redis_keys.gateway)

    def acquire_lease(self, holder: str, ttl_s: float) -> Lease | None:
        """Become or stay leader for `ttl_s` seconds; `None` while another controller holds the lease."""
        keys = [redis_keys.LEASE, redis_keys.FENCE]
        fence = self._run(redis_scripts.ACQUIRE, keys, holder, int(ttl_s * 1000))
        return Lease(holder=holder, fence=int(fence)) if fence else None

    def release_lease(self, lease: Lease) -> None:
        """Give up leadership at once, if `lease` still holds it."""
        self._run(redis_scripts.RELEASE, [redis_keys.LEASE], f"{lease.fence}:{lease.holder}")

    def changes(self, poll_s: float, of_pool: tuple[str, str] | None = None) -> Iterator[str | None]:
        """Yield the key of each announced change, and `None` after every `poll_s` seconds without one.

        With `of_pool`, a model and a pool, only schedules and questions of this pool are announced.

        The first value is `None`, once the subscription is active: read everything then. Ends when the connection
        breaks, or when the address of the store leads to another server: then subscribe again. While no subscription is
        to be had, for want of a right or of its connection, it yields `None` every `poll_s`.
        """
        epoch = self._dials.epoch
        with suppress(StoreRefusedError), translated():
            self._redis.exists(redis_keys.LEASE)  # makes a cluster's client look up the primary; subscribing does not
        while self._dials.epoch == epoch:
            is_subscribed = False
            try:
                with translated(), self._redis.pubsub() as subscription:
                    self._subscribe(
                        subscription, redis_keys.CHANGES if of_pool is None else redis_keys.pool_changes(*of_pool)
                    )
                    is_subscribed, self._unsubscribed = True, None
                    yield None
                    due = time.monotonic() + poll_s
                    while self._dials.epoch == epoch:
                        wait_s = min(_EPOCH_CHECK_S, max(0.0, due - time.monotonic()))
                        message = subscription.get_message(timeout=wait_s)
                        if message is not None and message["type"] == "message":
                            yield name_of(message["data"])
                        elif time.monotonic() >= due:
                            yield None
                            due = time.monotonic() + poll_s
            except StoreUnavailableError as error:
                if is_subscribed:
                    return
                if self._unsubscribed is None:
                    _log.warning("no announcements, Redis is read every %g s: %s", poll_s, error)
                self._unsubscribed = str(error)
            yield None
            time.sleep(poll_s)

    def _subscribe(self, subscription: Any, channel: str) -> None:
        """Subscribe, and return when the server has confirmed it."""
        subscription.subscribe(channel)
        if subscription.get_message(timeout=self._timeout_s) is None:
            raise StoreUnavailableError("Redis does not confirm a subscription")


def _decompressed(text: bytes) -> bytes:
    """Return a decision's JSON. Bytes that are not compressed stay unchanged: the decoder reports them."""
    try:
        return zlib.decompress(text)
    except zlib.error:
        return text
