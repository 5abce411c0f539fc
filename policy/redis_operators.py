"""The operators' part of the store on Redis; `redis_store` derives from it."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from typing_extensions import override

from specpilot.policy import audit, redis_keys
from specpilot.policy.access import AdminToken
from specpilot.policy.audit import AuditEntry, Result
from specpilot.policy.codec import decode, decode_each, encode
from specpilot.policy.errors import FencedError, InvalidDocumentError, StoreUnavailableError, VersionConflictError
from specpilot.policy.freeze import Freeze, Hold
from specpilot.policy.gain import GAIN_DAYS_KEPT, DailyGain, GainSums, LogGain, day_of
from specpilot.policy.history import PolicyVersion
from specpilot.policy.model_routes import ModelRoutes, VersionedModelRoutes
from specpilot.policy.operator_store import OperatorStore
from specpilot.policy.records import Lease
from specpilot.policy.redis_connection import guarded, translated

T = TypeVar("T")
_log = logging.getLogger(__name__)

_PUT_IF_SAME = """
local stored = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if stored ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return 1
"""

_PUT_VERSIONED = """
local stored = redis.call('GET', KEYS[1])
local version = stored and cjson.decode(stored).version or 0
if version ~= tonumber(ARGV[1]) then return version end
redis.call('SET', KEYS[1], ARGV[2])
return version
"""

_APPEND_AUDIT = """
local number = redis.call('INCR', KEYS[2])
redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], number .. '-0', 'entry', ARGV[2])
return number
"""

_ADD_GAIN = """
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return {} end
local day, sums = ARGV[2], {}
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
  if string.sub(field, 1, #day) <= ARGV[3] then redis.pcall('HDEL', KEYS[1], field) end
end
for index = 5, #ARGV, 2 do
  local prefix, log_gain = day .. ARGV[index], tonumber(ARGV[index + 1])
  local square = string.format('%.17g', log_gain * log_gain)
  table.insert(sums, redis.call('HINCRBYFLOAT', KEYS[1], prefix .. 'windows', 1))
  table.insert(sums, redis.call('HINCRBYFLOAT', KEYS[1], prefix .. 'log_sum', ARGV[index + 1]))
  table.insert(sums, redis.call('HINCRBYFLOAT', KEYS[1], prefix .. 'log_square_sum', square))
end
redis.pcall('EXPIRE', KEYS[1], ARGV[4])
return sums
"""
_DAY_S = 86_400
_THROUGHPUT, _ITL = ":", ":itl_"
"""Separators between a day and the name of a sum, by measure."""


class OperatorRecords(OperatorStore):
    """`policy.operator_store.OperatorStore` over a connection to Redis."""

    def __init__(self, connection: Any) -> None:
        self._redis = connection
        self._unreadable: set[bytes] = set()
        self._unannounced: str | None = None
        self._put_token = connection.register_script(_PUT_IF_SAME)
        self._put_model_routes = connection.register_script(_PUT_VERSIONED)
        self._append_audit = connection.register_script(_APPEND_AUDIT)
        self._add_gain = connection.register_script(_ADD_GAIN)

    @override
    def unannounced(self) -> str | None:
        return self._unannounced

    def _announce(self, key: str, channel: str = redis_keys.CHANGES) -> None:
        """Announce that `key` was written. A failure does not undo the write, so it is noted and logged once."""
        try:
            with translated():
                self._redis.publish(channel, key)
        except StoreUnavailableError as error:
            if self._unannounced is None:
                _log.warning("writes are not announced, other parts see them when they poll Redis: %s", error)
            self._unannounced = str(error)
        else:
            self._unannounced = None

    def _readable(self, kind: type[T], label: str, texts: Mapping[bytes, bytes]) -> list[T]:
        """Return the documents that can be read, in order of their names; log each other one once."""
        documents = self._each(kind, label, texts, "is left out; repair or delete it")
        return [document for document in documents.values() if not isinstance(document, InvalidDocumentError)]

    def _each(
        self, kind: type[T], label: str, texts: Mapping[bytes, bytes], then: str
    ) -> Mapping[str, T | InvalidDocumentError]:
        """Return each document by its name; log each one that cannot be read once, and the consequence `then`."""
        documents = decode_each(kind, texts)
        for (name, document), (_, text) in zip(documents.items(), sorted(texts.items()), strict=True):
            if isinstance(document, InvalidDocumentError) and text not in self._unreadable:
                self._unreadable = {*list(self._unreadable)[-100:], text}
                _log.error("%s %s cannot be read and %s: %s", label, name, then, document)
        return documents

    def _in_order(self, kind: type[T], label: str, texts: Mapping[bytes, bytes]) -> list[tuple[bytes, T]]:
        """Return the documents that can be read with their names, in the order of `texts`.

        One line is logged for all others: their number, and the fault of the first. They may be a whole history from
        another version that is read repeatedly.
        """
        documents = decode_each(kind, texts)
        read: list[tuple[bytes, T]] = []
        faults: list[tuple[bytes, InvalidDocumentError]] = []
        for name in texts:
            document = documents[name.decode(errors="replace")]
            if isinstance(document, InvalidDocumentError):
                faults.append((name, document))
            else:
                read.append((name, document))
        if faults and texts[faults[0][0]] not in self._unreadable:
            name, fault = faults[0]
            self._unreadable = {*list(self._unreadable)[-100:], texts[name]}
            _log.error("%d of %s cannot be read and are left out; %s: %s", len(faults), label, name.decode(), fault)
        return read

    @override
    @guarded
    def policy_versions(self, model: str, limit: int, before: int | None = None) -> Sequence[PolicyVersion]:
        key = redis_keys.policy_versions(model)
        numbers = sorted((int(name) for name in self._redis.hkeys(key)), reverse=True)
        page = [number for number in numbers if before is None or number < before][:limit]
        texts = self._redis.hmget(key, page) if page else []
        stored = {str(name).encode(): text for name, text in zip(page, texts, strict=True) if text is not None}
        return [
            version for _, version in self._in_order(PolicyVersion, f"the versions of the policy of {model!r}", stored)
        ]

    @override
    @guarded
    def policy_version(self, model: str, version: int) -> PolicyVersion | None:
        text = self._redis.hget(redis_keys.policy_versions(model), version)
        return None if text is None else decode(PolicyVersion, text)

    @override
    @guarded
    def model_routes(self) -> VersionedModelRoutes:
        text = self._redis.get(redis_keys.MODEL_ROUTES)
        return VersionedModelRoutes() if text is None else decode(VersionedModelRoutes, text)

    @override
    @guarded
    def put_model_routes(self, routes: ModelRoutes, expected_version: int, now: float) -> VersionedModelRoutes:
        written = VersionedModelRoutes(expected_version + 1, now, routes.routes)
        stored_version = self._put_model_routes(
            keys=[redis_keys.MODEL_ROUTES], args=[expected_version, encode(written)]
        )
        if stored_version != expected_version:
            raise VersionConflictError("the document of model routes", expected_version, int(stored_version))
        self._announce(redis_keys.MODEL_ROUTES)
        return written

    @override
    @guarded
    def admin_tokens(self) -> Sequence[AdminToken]:
        return self._readable(AdminToken, "the admin token", self._redis.hgetall(redis_keys.ADMIN_TOKENS))

    @override
    @guarded
    def admin_token(self, token_id: str) -> AdminToken | None:
        text = self._redis.hget(redis_keys.ADMIN_TOKENS, token_id)
        texts = {} if text is None else {token_id.encode(): text}
        return next(iter(self._readable(AdminToken, "the admin token", texts)), None)

    @override
    @guarded
    def put_admin_token(self, token: AdminToken, before: AdminToken | None) -> bool:
        stored = self._redis.hget(redis_keys.ADMIN_TOKENS, token.token_id)
        if (None if stored is None else decode(AdminToken, stored)) != before:
            return False
        return bool(self._put_token(keys=[redis_keys.ADMIN_TOKENS], args=[token.token_id, stored or "", encode(token)]))

    @override
    @guarded
    def delete_admin_token(self, token_id: str) -> bool:
        return bool(self._redis.hdel(redis_keys.ADMIN_TOKENS, token_id))

    @override
    @guarded
    def freezes(self) -> Mapping[str, Freeze]:
        texts = self._redis.hgetall(redis_keys.FREEZES)
        freezes = self._each(Freeze, "the freeze of", texts, "holds the current K; lift or replace it")
        return {
            model: _unreadable_freeze(model) if isinstance(item, InvalidDocumentError) else item
            for model, item in freezes.items()
        }

    @override
    @guarded
    def put_freeze(self, freeze: Freeze) -> None:
        self._redis.hset(redis_keys.FREEZES, freeze.model, encode(freeze))
        self._announce(redis_keys.FREEZES)

    @override
    @guarded
    def delete_freeze(self, model: str) -> bool:
        removed = bool(self._redis.hdel(redis_keys.FREEZES, model))
        self._announce(redis_keys.FREEZES)
        return removed

    @override
    @guarded
    def append_audit(self, entry: AuditEntry) -> int:
        key, limit = redis_keys.AUDIT, audit.DONE_KEPT
        if entry.result is Result.REFUSED:
            key, limit = redis_keys.AUDIT_REFUSED, audit.REFUSED_KEPT
        return int(self._append_audit(keys=[key, redis_keys.AUDIT_NUMBER], args=[limit, encode(entry)]))

    @override
    @guarded
    def audit(self, limit: int, before: int | None = None, after: int | None = None) -> Sequence[AuditEntry]:
        newest = "+" if before is None else f"{max(0, before - 1)}-0"
        oldest = "-" if after is None else f"{after + 1}-0"
        merged: list[AuditEntry] = []
        for key in (redis_keys.AUDIT, redis_keys.AUDIT_REFUSED):
            if after is None:
                rows = self._redis.xrevrange(key, max=newest, min=oldest, count=limit)
            else:
                rows = self._redis.xrange(key, min=oldest, max=newest, count=limit)
            stored = {at: fields[b"entry"] for at, fields in rows}
            entries = self._in_order(AuditEntry, "the audit entries", stored)
            merged += [replace(entry, number=_number(at)) for at, entry in entries]
        return sorted(merged, key=lambda entry: entry.number, reverse=after is None)[:limit]

    @override
    @guarded
    def add_gain(self, model: str, pool: str, at: float, log_gain: LogGain, lease: Lease) -> DailyGain:
        day, last_dropped = day_of(at), day_of(at - GAIN_DAYS_KEPT * _DAY_S)
        gains = (_THROUGHPUT, repr(log_gain.throughput), _ITL, repr(log_gain.itl))
        sums = self._add_gain(
            keys=[redis_keys.gains(model, pool), redis_keys.FENCE],
            args=[lease.fence, day, last_dropped, redis_keys.GAINS_EXPIRE_S, *gains],
        )
        if not sums:
            raise FencedError(f"lease {lease.fence} of {lease.holder} was followed by another")
        return DailyGain(day, _sums(sums[:3]), _sums(sums[3:]))

    @override
    @guarded
    def daily_gains(self, model: str, pool: str) -> Sequence[DailyGain]:
        stored = {name.decode(): text for name, text in self._redis.hgetall(redis_keys.gains(model, pool)).items()}

        def sums(prefix: str) -> GainSums:
            return _sums([stored.get(prefix + name, b"0") for name in ("windows", "log_sum", "log_square_sum")])

        days = sorted({name.partition(":")[0] for name in stored}, reverse=True)
        return [DailyGain(day, sums(day + _THROUGHPUT), sums(day + _ITL)) for day in days]


def _unreadable_freeze(model: str) -> Freeze:
    """Return the freeze used for one that cannot be read: without it K would change although an operator froze it."""
    return Freeze(model, Hold.CURRENT, since=0.0, author="unknown", comment="its document cannot be read")


def _sums(values: Sequence[Any]) -> GainSums:
    return GainSums(int(values[0]), float(values[1]), float(values[2]))


def _number(stream_id: bytes) -> int:
    return int(stream_id.partition(b"-")[0])
