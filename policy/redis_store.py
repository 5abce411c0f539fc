"""The store on Redis: the only module that imports `redis`.

Each compound write is one Lua script, so that it happens whole or not at all. Fencing: a counter grows with
every change of leader, and a schedule is accepted only from the lease that carries its latest value; so a
leader that slept through its own deposition cannot overwrite its successor. Works on any Redis from 6.0 on.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from policy import keys
from policy.canary import Experiment
from policy.codec import decode, encode
from policy.errors import FencedError, InvalidDocumentError, StoreUnavailableError, VersionConflictError
from policy.types import ApiKey, Decision, EngineRecord, GatewayUsage, Lease, Policy, Schedule, VersionedPolicy

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
_FILED_WITHIN_MS = 1000
_FILED_WITHIN = 20

_PUT_IF_VERSION = """
local found = redis.call('HGET', KEYS[1], ARGV[1])
local version = found and cjson.decode(found).version or 0
if ARGV[2] ~= '' and tonumber(ARGV[2]) ~= version then return {0, version} end
if ARGV[3] == '' then
  if not found then return {2, 0} end
  redis.call('HDEL', KEYS[1], ARGV[1])
  redis.call('HSET', KEYS[3], ARGV[1], version)
else
  if not found then version = tonumber(redis.call('HGET', KEYS[3], ARGV[1]) or 0) end
  redis.call('HSET', KEYS[1], ARGV[1],
    '{"version":' .. string.format('%d', version + 1) .. ',"updated_at":' .. ARGV[4] .. ',"policy":' .. ARGV[3] .. '}')
end
redis.call('PUBLISH', KEYS[2], KEYS[1])
return {1, version + 1}
"""

_PUBLISH_SCHEDULE = """
local fence = redis.call('GET', KEYS[2])
if fence ~= ARGV[1] then return {-1, tonumber(fence or 0)} end
local found = redis.call('HGET', KEYS[1], ARGV[2])
local version = found and cjson.decode(found).version or -1
if version >= tonumber(ARGV[3]) then return {0, version} end
redis.call('HSET', KEYS[1], ARGV[2], ARGV[4])
redis.call('PUBLISH', KEYS[3], KEYS[1])
return {1, 0}
"""

_CHANGE = """
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
redis.call('PUBLISH', KEYS[2], KEYS[1])
return 1
"""
_PUT_CANARY = """
if ARGV[4] ~= '' then
  local fence = redis.call('GET', KEYS[3])
  if fence ~= ARGV[4] then return {-1, tonumber(fence or 0)} end
end
local found = redis.call('HGET', KEYS[1], ARGV[1])
local version = found and cjson.decode(found).version or 0
if version ~= tonumber(ARGV[2]) then return {0, version} end
if ARGV[5] ~= '' then
  local policy = redis.call('HGET', KEYS[2], ARGV[1])
  local base = policy and cjson.decode(policy).version or 0
  if base ~= tonumber(ARGV[6]) then return {2, base} end
  if not policy then base = tonumber(redis.call('HGET', KEYS[5], ARGV[1]) or 0) end
  redis.call('HSET', KEYS[2], ARGV[1],
    '{"version":' .. string.format('%d', base + 1) .. ',"updated_at":' .. ARGV[7] .. ',"policy":' .. ARGV[5] .. '}')
  redis.call('PUBLISH', KEYS[4], KEYS[2])
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return {1, 0}
"""

_ACQUIRE = """
local found = redis.call('GET', KEYS[1])
if found then
  local fence, holder = string.match(found, '^(%d+):(.*)$')
  if holder ~= ARGV[1] then return 0 end
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return tonumber(fence)
end
local fence = redis.call('INCR', KEYS[2])
redis.call('SET', KEYS[1], fence .. ':' .. ARGV[1], 'PX', ARGV[2])
return fence
"""

_RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
        raise StoreUnavailableError(f"Redis does not answer: {error}") from error
    except redis.ResponseError as error:
        # A loading, read-only or full server refuses commands: for every caller the same as not answering.
        raise StoreUnavailableError(f"Redis refused a command: {error}") from error


def _guarded(method: F) -> F:
    """Make every failure of the server, in any call that `method` makes, a `StoreUnavailableError`."""

    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _translated():
            return method(*args, **kwargs)

    return cast("F", call)


class RedisStore:
    """`policy.store.Store` on one Redis server, primary of a replica set or Redis-compatible service."""

    def __init__(self, url: str, timeout_s: float = 0.5) -> None:
        """Connect lazily to `url` (`redis://`, `rediss://` or `unix://`).

        `timeout_s` bounds connecting and every answer. Raises `InvalidDocumentError` for a malformed URL.
        """
        try:
            self._redis: Any = redis.Redis.from_url(  # its answers are typed for two protocols at once
                url,
                socket_timeout=timeout_s,
                socket_connect_timeout=timeout_s,
                decode_responses=False,
                retry=Retry(NoBackoff(), retries=1),
            )
        except ValueError as error:
            raise InvalidDocumentError("Redis URL", ()) from error
        self._change = self._redis.register_script(_CHANGE)
        self._put_if_version = self._redis.register_script(_PUT_IF_VERSION)
        self._publish_schedule = self._redis.register_script(_PUBLISH_SCHEDULE)
        self._put_canary = self._redis.register_script(_PUT_CANARY)
        self._acquire = self._redis.register_script(_ACQUIRE)
        self._release = self._redis.register_script(_RELEASE)

    def close(self) -> None:
        """Close every connection."""
        self._redis.close()

    @_guarded
    def ping(self) -> None:
        """See `Store`."""
        self._redis.ping()

    @_guarded
    def policy(self, model: str) -> VersionedPolicy | None:
        """See `Store`."""
        return _decoded(VersionedPolicy, self._redis.hget(keys.POLICIES, model))

    @_guarded
    def policies(self) -> Sequence[VersionedPolicy]:
        """See `Store`."""
        return [decode(VersionedPolicy, text) for _, text in sorted(self._redis.hgetall(keys.POLICIES).items())]

    @_guarded
    def put_policy(self, policy: Policy, expected_version: int | None, now: float) -> VersionedPolicy:
        """See `Store`."""
        version = self._write_policy(policy.model, expected_version, encode(policy), now)
        return VersionedPolicy(version=version, updated_at=now, policy=policy)

    @_guarded
    def delete_policy(self, model: str, expected_version: int | None) -> bool:
        """See `Store`."""
        return self._write_policy(model, expected_version, b"", 0.0) > 0

    def _write_policy(self, model: str, expected_version: int | None, text: bytes, now: float) -> int:
        expected = "" if expected_version is None else str(expected_version)
        outcome, version = self._put_if_version(
            keys=[keys.POLICIES, keys.CHANGES, keys.DELETED_POLICIES], args=[model, expected, text, repr(now)]
        )
        if outcome == 0:
            raise VersionConflictError(f"the policy of {model}", expected_version or 0, version)
        return int(version)

    @_guarded
    def canary(self, model: str) -> Experiment | None:
        """See `Store`."""
        return _decoded(Experiment, self._redis.hget(keys.CANARIES, model))

    @_guarded
    def canaries(self) -> Sequence[Experiment]:
        """See `Store`."""
        return [decode(Experiment, text) for _, text in sorted(self._redis.hgetall(keys.CANARIES).items())]

    @_guarded
    def put_canary(self, experiment: Experiment, lease: Lease | None, now: float) -> None:
        """See `Store`."""
        model, expected, base = experiment.model, experiment.version - 1, experiment.base_version
        promotes = experiment.outcome is not None and experiment.outcome.is_promotion
        policy = encode(experiment.canary.policy) if promotes else b""
        fence = "" if lease is None else lease.fence
        outcome, found = self._put_canary(
            keys=[keys.CANARIES, keys.POLICIES, keys.FENCE, keys.CHANGES, keys.DELETED_POLICIES],
            args=[model, expected, encode(experiment), fence, policy, base, repr(now)],
        )
        if outcome == -1:
            raise FencedError(f"lease {fence} was followed by lease {found}")
        if outcome == 0:
            raise VersionConflictError(f"the canary of {model}", expected, found)
        if outcome == 2:  # noqa: PLR2004 - the script's third answer
            raise VersionConflictError(f"the policy of {model}", base, found)

    @_guarded
    def schedule(self, model: str, pool: str) -> Schedule | None:
        """See `Store`."""
        return _decoded(Schedule, self._redis.hget(keys.SCHEDULES, keys.schedule_field(model, pool)))

    @_guarded
    def schedules(self) -> Sequence[Schedule]:
        """See `Store`."""
        return [decode(Schedule, text) for _, text in sorted(self._redis.hgetall(keys.SCHEDULES).items())]

    @_guarded
    def publish_schedule(self, schedule: Schedule, lease: Lease) -> None:
        """See `Store`."""
        field = keys.schedule_field(schedule.model, schedule.pool)
        outcome, found = self._publish_schedule(
            keys=[keys.SCHEDULES, keys.FENCE, keys.CHANGES],
            args=[lease.fence, field, schedule.version, encode(schedule)],
        )
        if outcome == -1:
            raise FencedError(f"lease {lease.fence} of {lease.holder} was followed by lease {found}")
        if outcome == 0:
            raise VersionConflictError(f"the schedule of {field}", schedule.version - 1, found)

    @_guarded
    def engines(self) -> Sequence[EngineRecord]:
        """See `Store`."""
        ids = sorted(item.decode() for item in self._redis.smembers(keys.ENGINES))
        if not ids:
            return []
        return self._fresh(EngineRecord, keys.ENGINES, ids, keys.engine)

    def _fresh(self, kind: type[T], members: str, ids: Sequence[str], key_of: Callable[[str], str]) -> list[T]:
        """Return the documents of those of the set `members` whose own key has not expired; forget the others."""
        found = self._redis.mget([key_of(item) for item in ids])
        silent = [item for item, text in zip(ids, found, strict=True) if text is None]
        if silent:
            self._redis.srem(members, *silent)
        return [decode(kind, text) for text in found if text is not None]

    @_guarded
    def heartbeat(self, record: EngineRecord, ttl_s: float) -> None:
        """See `Store`."""
        pipe = self._redis.pipeline(transaction=True)
        pipe.set(keys.engine(record.engine_id), encode(record), px=int(ttl_s * 1000))
        pipe.sadd(keys.ENGINES, record.engine_id)
        _, added = pipe.execute()
        if added or record.draining:
            self._redis.publish(keys.CHANGES, keys.ENGINES)

    @_guarded
    def remove_engine(self, engine_id: str) -> None:
        """See `Store`."""
        pipe = self._redis.pipeline(transaction=True)
        pipe.delete(keys.engine(engine_id))
        pipe.srem(keys.ENGINES, engine_id)
        pipe.publish(keys.CHANGES, keys.ENGINES)
        pipe.execute()

    @_guarded
    def append_decision(self, decision: Decision, *, is_lasting: bool) -> None:
        """See `Store`."""
        fields: Any = {"decision": encode(decision)}
        recent, history = keys.decisions(decision.model, decision.pool), keys.history(decision.model, decision.pool)
        pipe = self._redis.pipeline(transaction=False)
        pipe.xadd(recent, fields, maxlen=keys.DECISIONS_KEPT, approximate=True)
        if is_lasting:
            pipe.xadd(history, fields, maxlen=keys.HISTORY_KEPT, approximate=True)
            pipe.expire(recent, keys.DECISIONS_EXPIRE_S)
            pipe.expire(history, keys.DECISIONS_EXPIRE_S)
        pipe.execute()

    @_guarded
    def decisions(self, model: str, pool: str, limit: int, before: float | None = None) -> Sequence[Decision]:
        """See `Store`."""
        newest = "+" if before is None else str(max(0, int(before * 1000) - 1))
        rows = self._redis.xrevrange(keys.decisions(model, pool), max=newest, min="-", count=limit)
        found = [decode(Decision, fields[b"decision"]) for _, fields in rows]
        if len(found) < limit:
            # What both streams hold was filed in both at almost the same time, but under ids of their own.
            newest = str(int(rows[-1][0].split(b"-")[0]) + _FILED_WITHIN_MS) if rows else newest
            rows = self._redis.xrevrange(keys.history(model, pool), max=newest, min="-", count=limit + _FILED_WITHIN)
            lasting = [decode(Decision, fields[b"decision"]) for _, fields in rows]
            found += [item for item in lasting if not found or item.at < found[-1].at][: limit - len(found)]
        return found

    @_guarded
    def api_keys(self) -> Sequence[ApiKey]:
        """See `Store`."""
        return [decode(ApiKey, text) for _, text in sorted(self._redis.hgetall(keys.API_KEYS).items())]

    @_guarded
    def api_keys_by_id(self) -> Mapping[str, ApiKey | InvalidDocumentError]:
        """See `Store`."""
        found: dict[str, ApiKey | InvalidDocumentError] = {}
        for key_id, text in sorted(self._redis.hgetall(keys.API_KEYS).items()):
            try:
                found[key_id.decode(errors="replace")] = decode(ApiKey, text)
            except InvalidDocumentError as error:
                found[key_id.decode(errors="replace")] = error
        return found

    @_guarded
    def put_api_key(self, key: ApiKey) -> None:
        """See `Store`."""
        self._redis.hset(keys.API_KEYS, key.key_id, encode(key))
        self._redis.publish(keys.CHANGES, keys.API_KEYS)

    @_guarded
    def change_api_key(self, before: ApiKey, after: ApiKey) -> bool:
        """See `Store`."""
        arguments = (before.key_id, encode(before), encode(after))
        return bool(self._change(keys=[keys.API_KEYS, keys.CHANGES], args=arguments))

    @_guarded
    def delete_api_key(self, key_id: str) -> bool:
        """See `Store`."""
        removed = bool(self._redis.hdel(keys.API_KEYS, key_id))
        self._redis.publish(keys.CHANGES, keys.API_KEYS)
        return removed

    @_guarded
    def exchange_usage(self, usage: GatewayUsage, ttl_s: float) -> Sequence[GatewayUsage]:
        """See `Store`."""
        pipe = self._redis.pipeline(transaction=True)
        pipe.set(keys.gateway(usage.gateway_id), encode(usage), px=int(ttl_s * 1000))
        pipe.sadd(keys.GATEWAYS, usage.gateway_id)
        pipe.smembers(keys.GATEWAYS)
        ids = sorted(item.decode() for item in pipe.execute()[-1])
        return self._fresh(GatewayUsage, keys.GATEWAYS, ids, keys.gateway)

    @_guarded
    def acquire_lease(self, holder: str, ttl_s: float) -> Lease | None:
        """See `Store`."""
        fence = self._acquire(keys=[keys.LEASE, keys.FENCE], args=[holder, int(ttl_s * 1000)])
        return Lease(holder=holder, fence=int(fence)) if fence else None

    @_guarded
    def release_lease(self, lease: Lease) -> None:
        """See `Store`."""
        self._release(keys=[keys.LEASE], args=[f"{lease.fence}:{lease.holder}"])

    def changes(self, poll_s: float) -> Iterator[str | None]:
        """See `Store`."""
        with _translated(), self._redis.pubsub(ignore_subscribe_messages=True) as subscription:
            subscription.subscribe(keys.CHANGES)
            yield None
            due = time.monotonic() + poll_s
            while True:
                message = subscription.get_message(timeout=max(0.0, due - time.monotonic()))
                if message is not None:
                    yield message["data"].decode()
                elif time.monotonic() >= due:
                    yield None
                    due = time.monotonic() + poll_s


def _decoded(kind: type[T], text: bytes | None) -> T | None:
    return None if text is None else decode(kind, text)
