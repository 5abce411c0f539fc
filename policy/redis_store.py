"""The store on Redis.

Each compound write is one Lua script (`redis_scripts`), so it is done completely or not at all. Fencing: a counter
grows with every change of leader, and a schedule is accepted only from the lease with its latest value. So a leader
that was suspended while another took over cannot overwrite its successor's schedules. Works on any Redis from 6.0 on,
as one server, behind Sentinel or as a cluster: the keys of one command, script or transaction share a hash tag.

A server that has reached `maxmemory` refuses commands that need memory. Reads go on. The leader's lease and the stored
records of engines and gateways are renewed unchanged. All other writes raise `StoreFullError`.
"""

import logging
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from typing_extensions import override

from specpilot.policy import redis_keys, redis_scripts
from specpilot.policy.api_key import ApiKey, GatewayUsage
from specpilot.policy.codec import decode, decode_each, encode
from specpilot.policy.errors import (
    FencedError,
    InvalidDocumentError,
    StoreFullError,
    StoreUnavailableError,
    VersionConflictError,
)
from specpilot.policy.records import Decision, EngineRecord, Lease
from specpilot.policy.redis_connection import connect, guarded, memory_of_each, run_id_of, translated
from specpilot.policy.redis_dials import Dials
from specpilot.policy.redis_questions import QuestionRecords
from specpilot.policy.redis_rights import missing
from specpilot.policy.redis_url import parse
from specpilot.policy.schedule import Schedule
from specpilot.policy.store import StoreMemory

T = TypeVar("T")
_log = logging.getLogger(__name__)
_FILED_WITHIN_MS = 1000
_FILED_WITHIN = 20
_EPOCH_CHECK_S = 0.5
"""Longest time, in seconds, after which a subscription ends when another connection has found a changed server."""


class RedisStore(QuestionRecords):
    """`policy.store.Store` on a Redis server, behind Sentinel, on a cluster, or on a compatible service."""

    def __init__(self, url: str, timeout_s: float = 0.5) -> None:
        """Connect lazily to `url`, see `policy.redis_url`.

        `timeout_s` bounds connecting and every answer. Raises `InvalidDocumentError` for a malformed URL.
        """
        address = parse(url)
        self._user = address.username
        self._dials = Dials()
        self._timeout_s = timeout_s
        self._unsubscribed: str | None = None
        self._redis: Any = connect(address, timeout_s, self._dials)  # the client's types cover two protocols at once
        super().__init__(self._redis)
        self._change = self._redis.register_script(redis_scripts.CHANGE)
        self._publish_schedule = self._redis.register_script(redis_scripts.PUBLISH_SCHEDULE)
        self._remove_schedule = self._redis.register_script(redis_scripts.REMOVE_SCHEDULE)
        self._acquire = self._redis.register_script(redis_scripts.ACQUIRE)
        self._release = self._redis.register_script(redis_scripts.RELEASE)

    def close(self) -> None:
        """Close every connection."""
        self._redis.close()

    @override
    @guarded
    def ping(self) -> None:
        self._redis.ping()

    @override
    @guarded
    def missing_rights(self) -> str | None:
        return missing(self._redis, self._user)

    @override
    def run_id(self) -> str | None:
        try:
            with translated():
                return run_id_of(self._redis, redis_keys.API_KEYS)
        except StoreUnavailableError:
            return None

    @override
    @guarded
    def memory(self) -> StoreMemory | None:
        reports = memory_of_each(self._redis)
        if not reports or any(name not in server for server in reports for name in ("used_memory", "maxmemory")):
            return None
        servers = [StoreMemory(server["used_memory"], server["maxmemory"]) for server in reports]
        return max(servers, key=lambda server: (server.used_ratio, server.used_bytes))

    @override
    @guarded
    def schedule(self, model: str, pool: str) -> Schedule | None:
        return self._decoded(Schedule, redis_keys.SCHEDULES, redis_keys.schedule_field(model, pool))

    @override
    @guarded
    def schedules(self) -> Sequence[Schedule]:
        return self._readable(Schedule, "the schedule of", self._redis.hgetall(redis_keys.SCHEDULES))

    @override
    @guarded
    def remove_schedule(self, model: str, pool: str, lease: Lease) -> None:
        field = redis_keys.schedule_field(model, pool)
        if self._remove_schedule(keys=[redis_keys.SCHEDULES, redis_keys.FENCE], args=[lease.fence, field]) == -1:
            raise FencedError(f"lease {lease.fence} of {lease.holder} was followed by another")

    @override
    @guarded
    def publish_schedule(self, schedule: Schedule, lease: Lease) -> None:
        field = redis_keys.schedule_field(schedule.model, schedule.pool)
        outcome, stored = self._publish_schedule(
            keys=[redis_keys.SCHEDULES, redis_keys.FENCE],
            args=[lease.fence, field, schedule.version, encode(schedule)],
        )
        if outcome == -1:
            raise FencedError(f"lease {lease.fence} of {lease.holder} was followed by lease {stored}")
        if outcome == 0:
            raise VersionConflictError(f"the schedule of {field}", schedule.version - 1, stored)
        self._announce(redis_keys.SCHEDULES, redis_keys.pool_changes(schedule.model, schedule.pool))

    @override
    @guarded
    def engines(self) -> Sequence[EngineRecord]:
        ids = sorted(item.decode() for item in self._redis.smembers(redis_keys.ENGINES))
        if not ids:
            return []
        return self._fresh(EngineRecord, redis_keys.ENGINES, ids, redis_keys.engine)

    def _fresh(self, kind: type[T], members: str, ids: Sequence[str], key_of: Callable[[str], str]) -> list[T]:
        """Return the documents of the members of the set `members` that have not expired; remove the other members."""
        stored = self._redis.mget([key_of(item) for item in ids])
        silent = [item for item, text in zip(ids, stored, strict=True) if text is None]
        if silent:
            self._redis.srem(members, *silent)
        texts = {item.encode(): text for item, text in zip(ids, stored, strict=True) if text is not None}
        return self._readable(kind, "the record of", texts)

    @override
    @guarded
    def heartbeat(self, record: EngineRecord, ttl_s: float) -> None:
        pipe = self._redis.pipeline(transaction=True)
        pipe.set(redis_keys.engine(record.engine_id), encode(record), px=int(ttl_s * 1000))
        pipe.sadd(redis_keys.ENGINES, record.engine_id)
        try:
            with translated():
                _, added = pipe.execute()
        except StoreFullError:
            self._keep(redis_keys.engine(record.engine_id), ttl_s)
            return
        if added or record.draining or record.stalled:
            self._announce(redis_keys.ENGINES)

    def _keep(self, key: str, ttl_s: float) -> None:
        """Renew `key` unchanged on a server that is full; raises `StoreFullError` if there is no such key."""
        if not self._redis.pexpire(key, int(ttl_s * 1000)):
            raise StoreFullError

    @override
    @guarded
    def remove_engine(self, engine_id: str) -> None:
        self._redis.delete(redis_keys.engine(engine_id))  # no transaction: a full server would refuse it
        self._redis.srem(redis_keys.ENGINES, engine_id)
        self._announce(redis_keys.ENGINES)

    @override
    @guarded
    def append_decision(self, decision: Decision, *, is_lasting: bool) -> None:
        text = zlib.compress(encode(decision))
        fields: Any = {"decision": text}
        pool = decision.model, decision.pool
        recent, history = redis_keys.decisions(*pool), redis_keys.history(*pool)
        pipe = self._redis.pipeline(transaction=False)
        maxlen = min(redis_keys.DECISIONS_KEPT, redis_keys.DECISIONS_BYTES // len(text))
        pipe.xadd(recent, fields, maxlen=maxlen, approximate=True)
        if is_lasting:
            maxlen = min(redis_keys.HISTORY_KEPT, redis_keys.HISTORY_BYTES // len(text))
            pipe.xadd(history, fields, maxlen=maxlen, approximate=True)
            pipe.expire(recent, redis_keys.DECISIONS_EXPIRE_S)
            pipe.expire(history, redis_keys.DECISIONS_EXPIRE_S)
        pipe.execute()

    @override
    @guarded
    def decisions(self, model: str, pool: str, limit: int, before: float | None = None) -> Sequence[Decision]:
        newest = "+" if before is None else str(max(0, int(before * 1000) - 1))
        rows = self._redis.xrevrange(redis_keys.decisions(model, pool), max=newest, min="-", count=limit)
        decisions = self._decisions(rows)
        if len(decisions) < limit:
            # A decision in both streams was added to them at almost the same time, under ids of their own.
            newest = str(int(rows[-1][0].split(b"-")[0]) + _FILED_WITHIN_MS) if rows else newest
            rows = self._redis.xrevrange(
                redis_keys.history(model, pool), max=newest, min="-", count=limit + _FILED_WITHIN
            )
            lasting = [item for item in self._decisions(rows) if not decisions or item.at < decisions[-1].at]
            decisions += lasting[: limit - len(decisions)]
        return decisions

    def _decisions(self, rows: Sequence[tuple[bytes, Mapping[bytes, bytes]]]) -> list[Decision]:
        texts = {at: _decompressed(fields[b"decision"]) for at, fields in rows}
        return [decision for _, decision in self._in_order(Decision, "the decisions", texts)]

    @override
    @guarded
    def api_keys(self) -> Sequence[ApiKey]:
        return self._readable(ApiKey, "the API key", self._redis.hgetall(redis_keys.API_KEYS))

    @override
    @guarded
    def api_keys_by_id(self) -> Mapping[str, ApiKey | InvalidDocumentError]:
        return decode_each(ApiKey, self._redis.hgetall(redis_keys.API_KEYS))

    @override
    @guarded
    def put_api_key(self, key: ApiKey) -> None:
        self._redis.hset(redis_keys.API_KEYS, key.key_id, encode(key))
        self._announce(redis_keys.API_KEYS)

    @override
    @guarded
    def change_api_key(self, before: ApiKey, after: ApiKey) -> bool:
        stored = self._redis.hget(redis_keys.API_KEYS, before.key_id)
        if stored is None or decode(ApiKey, stored) != before:
            return False
        # The stored text is compared: a document of an older version lacks later fields.
        arguments = (before.key_id, stored, encode(after))
        is_written = bool(self._change(keys=[redis_keys.API_KEYS], args=arguments))
        if is_written:
            self._announce(redis_keys.API_KEYS)
        return is_written

    @override
    @guarded
    def delete_api_key(self, key_id: str) -> bool:
        removed = bool(self._redis.hdel(redis_keys.API_KEYS, key_id))
        self._announce(redis_keys.API_KEYS)
        return removed

    @override
    @guarded
    def exchange_usage(self, usage: GatewayUsage, ttl_s: float) -> Sequence[GatewayUsage]:
        pipe = self._redis.pipeline(transaction=True)
        pipe.set(redis_keys.gateway(usage.gateway_id), encode(usage), px=int(ttl_s * 1000))
        pipe.sadd(redis_keys.GATEWAYS, usage.gateway_id)
        try:
            with translated():
                pipe.execute()
        except StoreFullError:
            self._keep(redis_keys.gateway(usage.gateway_id), ttl_s)
        ids = sorted(item.decode() for item in self._redis.smembers(redis_keys.GATEWAYS))
        return self._fresh(GatewayUsage, redis_keys.GATEWAYS, ids, redis_keys.gateway)

    @override
    @guarded
    def acquire_lease(self, holder: str, ttl_s: float) -> Lease | None:
        fence = self._acquire(keys=[redis_keys.LEASE, redis_keys.FENCE], args=[holder, int(ttl_s * 1000)])
        return Lease(holder=holder, fence=int(fence)) if fence else None

    @override
    @guarded
    def release_lease(self, lease: Lease) -> None:
        self._release(keys=[redis_keys.LEASE], args=[f"{lease.fence}:{lease.holder}"])

    @override
    def changes(self, poll_s: float, of_pool: tuple[str, str] | None = None) -> Iterator[str | None]:
        epoch = self._dials.epoch
        with translated():
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
                            yield message["data"].decode()
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
