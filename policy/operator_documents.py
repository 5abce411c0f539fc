"""The operators' part of the store: policies, canaries, model routes, keys, tokens, freezes, audit, gains.

`policy.store` derives from it. Every call may raise `StoreUnavailableError`.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from specpilot.policy import audit, redis_keys, redis_scripts
from specpilot.policy.access import AdminToken
from specpilot.policy.api_key import ApiKey
from specpilot.policy.audit import CONTROLLER, AuditEntry, Result
from specpilot.policy.canary import Experiment
from specpilot.policy.codec import decode, decode_each, encode, name_of
from specpilot.policy.errors import InvalidDocumentError, StoreUnavailableError, VersionConflictError
from specpilot.policy.freeze import Freeze, Hold
from specpilot.policy.gain import GAIN_DAYS_KEPT, DailyGain, LogGain, day_of
from specpilot.policy.history import DELETED, VERSIONS_KEPT, WRITTEN, Change, PolicyVersion, VersionCause
from specpilot.policy.model_policy import Policy, VersionedPolicy
from specpilot.policy.model_routes import ModelRoutes, VersionedModelRoutes
from specpilot.policy.records import Lease
from specpilot.policy.redis_connection import guarded, translated
from specpilot.policy.redis_documents import Documents, Place, version_of

_DAY_S = 86_400


@guarded
class OperatorDocuments(Documents):
    """The shared state of operators."""

    def policy(self, model: str) -> VersionedPolicy | None:
        """Return the policy of `model`; `None` when there is none."""
        return self._document(VersionedPolicy, Place(redis_keys.POLICIES, model))

    def policies(self) -> Sequence[VersionedPolicy]:
        """Return every policy that can be read, in order of model."""
        return self._documents(VersionedPolicy, "the policies", redis_keys.POLICIES)

    def policies_by_model(self) -> Mapping[str, VersionedPolicy | InvalidDocumentError]:
        """Return by model every policy, or the faults of its document."""
        return decode_each(VersionedPolicy, self._fields(redis_keys.POLICIES))

    def put_policy(
        self, policy: Policy, expected_version: int | None, now: float, change: Change = WRITTEN
    ) -> VersionedPolicy:
        """Write `policy` if the stored version is `expected_version` (0: none yet; `None`: any).

        `change` goes into the policy's history; the author is no part of the policy. Raises `VersionConflictError` when
        another version is stored.
        """
        version = self._write_policy(policy.model, policy, expected_version, now, change)
        return VersionedPolicy(version, now, policy)

    def delete_policy(self, model: str, expected_version: int | None, now: float, change: Change = DELETED) -> bool:
        """Remove the policy of `model`; `False` when there is none. Conflicts as in `put_policy`.

        A deletion is a version too.
        """
        return self._write_policy(model, None, expected_version, now, change) > 0

    def _write_policy(
        self, model: str, policy: Policy | None, expected_version: int | None, now: float, change: Change
    ) -> int:
        """Return the written version; 0 if there was no policy to delete."""
        version = 0

        def decide(stored: bytes | None, deleted: bytes | None) -> Mapping[Place, bytes]:
            nonlocal version
            present = version_of(stored)
            if expected_version not in (None, present):
                raise VersionConflictError(f"the policy of {model}", expected_version or 0, present)
            if policy is None and stored is None:
                return {}
            version = _next(stored, deleted)
            return _policy_writes(model, policy, version, now, change)

        if self._change(_policy_places(model), decide):
            self._after_policy(model, version)
        return version

    def _after_policy(self, model: str, version: int) -> None:
        """Remove the version that is one too many, if that is permitted, and announce the write."""
        with suppress(StoreUnavailableError), translated():
            self._redis.hdel(redis_keys.policy_versions(model), version - VERSIONS_KEPT)
        self._announce(redis_keys.POLICIES)

    def policy_versions(self, model: str, limit: int, before: int | None = None) -> Sequence[PolicyVersion]:
        """Return the latest `limit` versions of a policy, newest first; with `before`, those below that version."""
        key = redis_keys.policy_versions(model)
        numbers = sorted((int(name) for name in self._redis.hkeys(key)), reverse=True)
        page = [number for number in numbers if before is None or number < before][:limit]
        texts = self._redis.hmget(key, page) if page else []
        stored = {str(name).encode(): text for name, text in zip(page, texts, strict=True) if text is not None}
        return [*self._readable(PolicyVersion, f"the versions of the policy of {model!r}", stored).values()]

    def policy_version(self, model: str, version: int) -> PolicyVersion | None:
        """Return one version; `None` when it never existed or is no longer kept."""
        return self._document(PolicyVersion, Place(redis_keys.policy_versions(model), str(version)))

    def canary(self, model: str) -> Experiment | None:
        """Return the running or latest experiment of `model`; `None` when there was none."""
        return self._document(Experiment, Place(redis_keys.CANARIES, model))

    def canaries(self) -> Sequence[Experiment]:
        """Return the running or latest experiment of every model, of those that can be read."""
        return self._documents(Experiment, "the canaries", redis_keys.CANARIES)

    def put_canary(self, experiment: Experiment, lease: Lease | None, now: float, change: Change | None = None) -> None:
        """Write `experiment` if the stored version is the one before its own (1: nothing is stored).

        With a promoting outcome its policy becomes the model's policy in the same step, if the stored policy is still
        at the experiment's `base_version`. `change` goes into the policy's history; by default the author is the
        controller. A controller passes its `lease`, an operator none. Raises `VersionConflictError` when the experiment
        or the policy was written in between, `FencedError` as `publish_schedule`.
        """
        model, expected, base = experiment.model, experiment.version - 1, experiment.base_version
        promotes = experiment.outcome is not None and experiment.outcome.is_promotion
        change = change or Change(CONTROLLER, VersionCause.CANARY, f"canary {experiment.experiment_id} was better")
        place, version = Place(redis_keys.CANARIES, model), 0

        def decide(canary: bytes | None, policy: bytes | None, deleted: bytes | None) -> Mapping[Place, bytes]:
            nonlocal version
            if version_of(canary) != expected:
                raise VersionConflictError(f"the canary of {model}", expected, version_of(canary))
            if not promotes:
                return {place: encode(experiment)}
            if version_of(policy) != base:
                raise VersionConflictError(f"the policy of {model}", base, version_of(policy))
            version = _next(policy, deleted)
            promoted = _policy_writes(model, experiment.canary.policy, version, now, change)
            return {**promoted, place: encode(experiment)}

        self._change([place, *_policy_places(model)], decide, lease)
        if promotes:
            self._after_policy(model, version)

    def model_routes(self) -> VersionedModelRoutes:
        """Return the model routes; an empty document of version 0 before the first write."""
        text = self._redis.get(redis_keys.MODEL_ROUTES)
        return VersionedModelRoutes() if text is None else decode(VersionedModelRoutes, text)

    def put_model_routes(self, routes: ModelRoutes, expected_version: int, now: float) -> VersionedModelRoutes:
        """Write `routes` if the stored version is `expected_version`; else raises `VersionConflictError`."""
        place = Place(redis_keys.MODEL_ROUTES)
        written = VersionedModelRoutes(expected_version + 1, now, routes.routes)

        def decide(stored: bytes | None) -> Mapping[Place, bytes]:
            if version_of(stored) != expected_version:
                raise VersionConflictError("the document of model routes", expected_version, version_of(stored))
            return {place: encode(written)}

        self._change([place], decide)
        self._announce(redis_keys.MODEL_ROUTES)
        return written

    def api_keys(self) -> Sequence[ApiKey]:
        """Return every client key that can be read (hashes only)."""
        return self._documents(ApiKey, "the API keys", redis_keys.API_KEYS)

    def api_keys_by_id(self) -> Mapping[str, ApiKey | InvalidDocumentError]:
        """Return by id every client key, or the faults of its document."""
        return decode_each(ApiKey, self._fields(redis_keys.API_KEYS))

    def put_api_key(self, key: ApiKey) -> None:
        """Add or replace a client key."""
        self._redis.hset(redis_keys.API_KEYS, key.key_id, encode(key))
        self._announce(redis_keys.API_KEYS)

    def change_api_key(self, before: ApiKey, after: ApiKey) -> bool:
        """Replace `before` by `after` of the same id; `False`, and nothing is written, when `before` is not there."""
        is_written = self._replace(Place(redis_keys.API_KEYS, before.key_id), before, after)
        if is_written:
            self._announce(redis_keys.API_KEYS)
        return is_written

    def delete_api_key(self, key_id: str) -> bool:
        """Revoke a client key; `False` when there is none of that id."""
        removed = bool(self._redis.hdel(redis_keys.API_KEYS, key_id))
        self._announce(redis_keys.API_KEYS)
        return removed

    def admin_tokens(self) -> Sequence[AdminToken]:
        """Return every named token that can be read, in order of id."""
        return self._documents(AdminToken, "the admin tokens", redis_keys.ADMIN_TOKENS)

    def admin_token(self, token_id: str) -> AdminToken | None:
        """Return one named token; `None` when it does not exist or cannot be read."""
        text = self._redis.hget(redis_keys.ADMIN_TOKENS, token_id)
        texts = {} if text is None else {token_id.encode(): text}
        return self._readable(AdminToken, "the admin tokens", texts).get(token_id)

    def put_admin_token(self, token: AdminToken, before: AdminToken | None) -> bool:
        """Replace `before` (`None`: no token) by `token`; `False`, and nothing is written, if another is stored."""
        return self._replace(Place(redis_keys.ADMIN_TOKENS, token.token_id), before, token)

    def delete_admin_token(self, token_id: str) -> bool:
        """Revoke a token; `False` when there is none of that id."""
        return bool(self._redis.hdel(redis_keys.ADMIN_TOKENS, token_id))

    def freezes(self) -> Mapping[str, Freeze]:
        """Return every freeze by its model, expired ones included.

        A freeze that cannot be read counts as a freeze of the current K until it is lifted or replaced: otherwise K
        would change although an operator froze it.
        """
        texts = self._fields(redis_keys.FREEZES)
        freezes = self._readable(Freeze, "the freezes", texts, "hold the current K; lift or replace them")
        return {name: freezes.get(name) or _unreadable_freeze(name) for name in map(name_of, texts)}

    def put_freeze(self, freeze: Freeze) -> None:
        """Begin a freeze, or replace the one of the same model."""
        self._redis.hset(redis_keys.FREEZES, freeze.model, encode(freeze))

    def delete_freeze(self, model: str) -> bool:
        """Lift a freeze; `False` when there is none."""
        return bool(self._redis.hdel(redis_keys.FREEZES, model))

    def append_audit(self, entry: AuditEntry) -> int:
        """Add an entry and return its number; the oldest entries are dropped."""
        key, limit = redis_keys.AUDIT, audit.DONE_KEPT
        if entry.result is Result.REFUSED:
            key, limit = redis_keys.AUDIT_REFUSED, audit.REFUSED_KEPT
        return int(self._run(redis_scripts.APPEND_AUDIT, [key, redis_keys.AUDIT_NUMBER], limit, encode(entry)))

    def audit(self, limit: int, before: int | None = None, after: int | None = None) -> Sequence[AuditEntry]:
        """Return `limit` entries with numbers below `before` and above `after`.

        They are the newest ones, newest first; with `after` the oldest ones, oldest first.
        """
        newest = "+" if before is None else f"{max(0, before - 1)}-0"
        oldest = "-" if after is None else f"{after + 1}-0"
        merged: list[AuditEntry] = []
        for key in (redis_keys.AUDIT, redis_keys.AUDIT_REFUSED):
            if after is None:
                rows = self._redis.xrevrange(key, max=newest, min=oldest, count=limit)
            else:
                rows = self._redis.xrange(key, min=oldest, max=newest, count=limit)
            stored = {at: fields[b"entry"] for at, fields in rows}
            entries = self._readable(AuditEntry, "the audit entries", stored)
            merged += [replace(entry, number=int(at.partition("-")[0])) for at, entry in entries.items()]
        return sorted(merged, key=lambda entry: entry.number, reverse=after is None)[:limit]

    def add_gain(self, model: str, pool: str, at: float, log_gain: LogGain, lease: Lease) -> DailyGain:
        """Add a window of the control group, compared at `at` (Unix seconds), to its day; return that day.

        Days before the last `GAIN_DAYS_KEPT` are dropped. Raises `FencedError` when another controller has led since
        `lease`.
        """
        key, day, last_dropped = redis_keys.gains(model, pool), day_of(at), day_of(at - GAIN_DAYS_KEPT * _DAY_S)
        place, total = Place(key, day), DailyGain(day)

        def decide(stored: bytes | None) -> Mapping[Place, bytes]:
            nonlocal total
            total = (DailyGain(day) if stored is None else decode(DailyGain, stored)).plus(log_gain)
            return {place: encode(total)}

        self._change([place], decide, lease)
        with suppress(StoreUnavailableError), translated():  # the user of Redis may lack the rights
            self._redis.expire(key, redis_keys.GAINS_EXPIRE_S)
            dropped = [name for name in self._redis.hkeys(key) if name_of(name) <= last_dropped]
            if dropped:
                self._redis.hdel(key, *dropped)
        return total

    def daily_gains(self, model: str, pool: str) -> Sequence[DailyGain]:
        """Return the days with compared windows, newest first."""
        label = f"the daily gains of {model!r} in {pool!r}"
        return self._documents(DailyGain, label, redis_keys.gains(model, pool))[::-1]


def _policy_places(model: str) -> tuple[Place, Place]:
    return Place(redis_keys.POLICIES, model), Place(redis_keys.DELETED_POLICIES, model)


def _next(stored: bytes | None, deleted: bytes | None) -> int:
    """Return the version after that of the `stored` policy, or after the one at which it was deleted."""
    return 1 + (int(deleted or 0) if stored is None else version_of(stored))


def _policy_writes(
    model: str, policy: Policy | None, version: int, now: float, change: Change
) -> Mapping[Place, bytes]:
    """Return the writes of one version of a policy; `None` deletes it, and leaves its version to go on from."""
    place, deleted = _policy_places(model)
    entry = PolicyVersion(version, now, policy, change.author, change.cause, change.comment)
    history = {Place(redis_keys.policy_versions(model), str(version)): encode(entry)}
    if policy is None:
        return {deleted: str(version).encode(), place: b"", **history}
    return {**history, place: encode(VersionedPolicy(version, now, policy))}


def _unreadable_freeze(model: str) -> Freeze:
    """Return the freeze used for one that cannot be read: without it K would change although an operator froze it."""
    return Freeze(model, Hold.CURRENT, since=0.0, author="unknown", comment="its document cannot be read")
