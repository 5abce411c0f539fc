"""The part of the store on Redis that holds policies, their history, and canaries; `redis_store` derives from it."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from typing_extensions import override

from specpilot.policy import redis_keys, redis_scripts
from specpilot.policy.audit import CONTROLLER
from specpilot.policy.canary import Experiment
from specpilot.policy.codec import decode, decode_each, encode
from specpilot.policy.errors import FencedError, InvalidDocumentError, VersionConflictError
from specpilot.policy.history import DELETED, VERSIONS_KEPT, WRITTEN, Cause, Change
from specpilot.policy.model_policy import Policy, VersionedPolicy
from specpilot.policy.records import Lease
from specpilot.policy.redis_connection import guarded
from specpilot.policy.redis_operators import OperatorRecords
from specpilot.policy.store import Store

T = TypeVar("T")


class PolicyRecords(OperatorRecords, Store):
    """Policies and canaries; each write is one script."""

    def __init__(self, redis: Any) -> None:
        super().__init__(redis)
        self._put_if_version = redis.register_script(redis_scripts.PUT_IF_VERSION)
        self._put_canary = redis.register_script(redis_scripts.PUT_CANARY)

    def _decoded(self, kind: type[T], key: str, field: str) -> T | None:
        """Return the document in `field` of the hash `key`, `None` without one.

        Raises `InvalidDocumentError`, which names the place.
        """
        text = self._redis.hget(key, field)
        try:
            return None if text is None else decode(kind, text)
        except InvalidDocumentError as error:
            raise InvalidDocumentError(f"{error.kind} in field {field} of the hash {key}", error.faults) from error

    @override
    @guarded
    def policy(self, model: str) -> VersionedPolicy | None:
        return self._decoded(VersionedPolicy, redis_keys.POLICIES, model)

    @override
    @guarded
    def policies(self) -> Sequence[VersionedPolicy]:
        return self._readable(VersionedPolicy, "the policy of", self._redis.hgetall(redis_keys.POLICIES))

    @override
    @guarded
    def policies_by_model(self) -> Mapping[str, VersionedPolicy | InvalidDocumentError]:
        return decode_each(VersionedPolicy, self._redis.hgetall(redis_keys.POLICIES))

    @override
    @guarded
    def put_policy(
        self, policy: Policy, expected_version: int | None, now: float, change: Change = WRITTEN
    ) -> VersionedPolicy:
        version = self._write_policy(policy.model, expected_version, encode(policy), now, change)
        return VersionedPolicy(version=version, updated_at=now, policy=policy)

    @override
    @guarded
    def delete_policy(self, model: str, expected_version: int | None, now: float, change: Change = DELETED) -> bool:
        return self._write_policy(model, expected_version, b"", now, change) > 0

    def _write_policy(self, model: str, expected_version: int | None, text: bytes, now: float, change: Change) -> int:
        expected = "" if expected_version is None else str(expected_version)
        outcome, version = self._put_if_version(
            keys=[
                redis_keys.POLICIES,
                redis_keys.DELETED_POLICIES,
                redis_keys.policy_versions(model),
            ],
            args=[model, expected, text, repr(now), _ending(change), VERSIONS_KEPT],
        )
        if outcome == 0:
            raise VersionConflictError(f"the policy of {model}", expected_version or 0, version)
        self._announce(redis_keys.POLICIES)
        return int(version)

    @override
    @guarded
    def canary(self, model: str) -> Experiment | None:
        return self._decoded(Experiment, redis_keys.CANARIES, model)

    @override
    @guarded
    def canaries(self) -> Sequence[Experiment]:
        return self._readable(Experiment, "the canary of", self._redis.hgetall(redis_keys.CANARIES))

    @override
    @guarded
    def put_canary(self, experiment: Experiment, lease: Lease | None, now: float, change: Change | None = None) -> None:
        model, expected, base = experiment.model, experiment.version - 1, experiment.base_version
        promotes = experiment.outcome is not None and experiment.outcome.is_promotion
        policy = encode(experiment.canary.policy) if promotes else b""
        fence = "" if lease is None else lease.fence
        outcome, stored = self._put_canary(
            keys=[
                redis_keys.CANARIES,
                redis_keys.POLICIES,
                redis_keys.FENCE,
                redis_keys.DELETED_POLICIES,
                redis_keys.policy_versions(model),
            ],
            args=[
                *(model, expected, encode(experiment), fence, policy, base, repr(now)),
                *(_ending(change or _promoted(experiment)), VERSIONS_KEPT),
            ],
        )
        if outcome == -1:
            raise FencedError(f"lease {fence} was followed by lease {stored}")
        if outcome == 0:
            raise VersionConflictError(f"the canary of {model}", expected, stored)
        if outcome == 2:  # noqa: PLR2004 - the script's third answer
            raise VersionConflictError(f"the policy of {model}", base, stored)
        if promotes:
            self._announce(redis_keys.POLICIES)


def _ending(change: Change) -> bytes:
    """Return the author, cause and comment of a version, as the last members of its document."""
    return encode(change)[1:]


def _promoted(experiment: Experiment) -> Change:
    """Return the entry in the history for a promotion that no operator asked for."""
    return Change(CONTROLLER, Cause.CANARY, f"canary {experiment.experiment_id} was better")
