"""What the gateway knows of the shared state at one moment: engines, policies, API keys, model routes.

Immutable, so that a request sees one state, however often the next one replaces it.

After Redis was away it may come back empty, with engines and people still to write their parts again. So for
`SETTLE_S` after a reconnection nothing that the last snapshot had is dropped because it is missing. And once a key
has been seen, a key stays required for the life of the process: losing the keys closes the gateway, it never opens
it. Keys that cannot be read are not the same as no keys: a gateway that has not read Redis yet does not know whether
one is required. Pure.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from specpilot.policy.codec import from_plain, to_plain
from specpilot.policy.errors import Fault, InvalidDocumentError
from specpilot.policy.model_routes import ModelRoute
from specpilot.policy.types import (
    DEFAULT_CLASS,
    ApiKey,
    EngineRecord,
    MatchRule,
    VersionedPolicy,
    is_class_name,
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The shared state as last read.

    `keys` maps the SHA-256 of a key to it, `model_routes` a name to what serves it. `is_awaiting_keys`: Redis was never
    read, so `keys` may lack some and `needs_key` may be wrong. `taken_at` is monotonic seconds of the last good read,
    `None` when the state comes from flags alone.
    """

    engines: tuple[EngineRecord, ...] = ()
    policies: Mapping[str, VersionedPolicy] = field(default_factory=dict)
    keys: Mapping[str, ApiKey] = field(default_factory=dict)
    model_routes: Mapping[str, ModelRoute] = field(default_factory=dict)
    needs_key: bool = False
    is_awaiting_keys: bool = False
    taken_at: float | None = None

    def known_classes(self, model: str) -> frozenset[str]:
        """Return the traffic classes of `model`: its policy's, or without one `default` and those that keys name."""
        found = self.policies.get(model)
        if found is not None:
            return frozenset(found.policy.class_names)
        named = {key.traffic_class for key in self.keys.values() if key.traffic_class is not None}
        return frozenset({DEFAULT_CLASS} | {name for name in named if is_class_name(name)})

    def rules(self, model: str) -> tuple[MatchRule, ...]:
        """Return the match rules of `model`'s policy."""
        found = self.policies.get(model)
        return () if found is None else found.policy.match

    def policy_version(self, model: str) -> int:
        """Return the version of `model`'s policy; 0 when it has none."""
        found = self.policies.get(model)
        return 0 if found is None else found.version


def follow(previous: Snapshot, found: Snapshot, *, is_settling: bool) -> Snapshot:
    """Return the snapshot that follows `previous`, when Redis now states `found`."""
    needs_key = previous.needs_key or found.needs_key or bool(found.keys)
    if not is_settling:
        return replace(found, needs_key=needs_key)
    stated = {record.engine_id for record in found.engines}
    silent = tuple(record for record in previous.engines if record.engine_id not in stated)
    return Snapshot(
        engines=found.engines + silent,
        policies={**previous.policies, **found.policies},
        keys={**previous.keys, **found.keys},
        model_routes={**previous.model_routes, **found.model_routes},
        needs_key=needs_key,
        taken_at=found.taken_at,
    )


def by_hash(keys: Sequence[ApiKey]) -> dict[str, ApiKey]:
    """Return `keys` as the gateway looks them up."""
    found = {key.previous_sha256.lower(): key for key in keys if key.previous_sha256}
    return found | {key.sha256.lower(): key for key in keys}


def hash_of(key: str | bytes) -> str:
    """Return what is kept of an API key."""
    return hashlib.sha256(key.encode() if isinstance(key, str) else key).hexdigest()


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """One entry of the API keys file. The key itself goes no further than `keys_of`."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    key_id: str
    key: str = field(repr=False)
    traffic_class: str | None = None
    allowed_classes: tuple[str, ...] | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    expires_at: float | None = None
    allowed_models: tuple[str, ...] | None = None
    max_concurrent_requests: int | None = None
    k_max: int | None = None


def keys_of(plain: object) -> tuple[ApiKey, ...]:
    """Return the keys that an API keys file's JSON states. Raises `InvalidDocumentError` with every fault."""
    if not isinstance(plain, list):
        raise InvalidDocumentError("API keys file", (Fault("", "must be a JSON list of objects with key_id and key"),))
    faults: list[Fault] = []
    keys: list[ApiKey] = []
    for index, item in enumerate(plain):
        try:
            entry = from_plain(KeyEntry, item)
        except InvalidDocumentError as error:
            faults.extend(Fault(f"[{index}].{fault.field}", fault.problem) for fault in error.faults)
            continue
        named = [name for name in (entry.traffic_class, *(entry.allowed_classes or ())) if name is not None]
        faults.extend(
            Fault(f"[{index}]", f"{name!r} is not a class name (lower case, at most 32 characters)")
            for name in named
            if not is_class_name(name)
        )
        if not entry.key or not entry.key_id:
            faults.append(Fault(f"[{index}]", "key and key_id must not be empty"))
        stated = to_plain(entry)
        try:
            keys.append(from_plain(ApiKey, {"sha256": hash_of(stated.pop("key")), **stated}))
        except InvalidDocumentError as error:
            faults.extend(Fault(f"[{index}]", fault.problem) for fault in error.faults)
    if faults:
        raise InvalidDocumentError("API keys file", tuple(faults))
    return tuple(keys)
