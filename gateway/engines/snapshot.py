"""The gateway's copy of the shared state at one moment: engines, policies, API keys, model routes. Pure.

A snapshot is immutable, so a request sees one state even when a new snapshot replaces it meanwhile.

- Redis may be empty after an outage, until engines and operators have written their documents again. So for `SETTLE_S`
  after it, a document of the last snapshot is kept although Redis lacks it. Once Redis has held it again, it is kept no
  longer: a key that is revoked then is revoked.
- Once a key has been read, requests need a key until the process ends. If the keys are lost, the gateway rejects
  requests; it never accepts requests without a key.
- Unreadable keys are not the same as no keys: a gateway that has not read Redis yet does not know whether requests need
  a key.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from specpilot.policy.access import sha256_of
from specpilot.policy.api_key import ApiKey
from specpilot.policy.clean_text import secret
from specpilot.policy.codec import from_plain
from specpilot.policy.errors import Fault, InvalidDocumentError
from specpilot.policy.model_policy import MatchRule, VersionedPolicy
from specpilot.policy.model_routes import ModelRoute
from specpilot.policy.names import DEFAULT_CLASS
from specpilot.policy.records import EngineRecord


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The shared state as last read.

    `keys` maps the SHA-256 of a key to the key; `model_routes` maps a name to its route. `is_awaiting_keys`: Redis has
    never been read, so `keys` may lack some and `needs_key` may be wrong. `returned_keys` are the ids of keys that
    Redis lacked meanwhile: its data is older than what was read before, and they may be revoked. `taken_at` is the time
    of the last good read, in monotonic seconds; `None` when the state comes from flags alone.
    """

    engines: tuple[EngineRecord, ...] = ()
    policies: Mapping[str, VersionedPolicy] = field(default_factory=dict)
    keys: Mapping[str, ApiKey] = field(default_factory=dict)
    model_routes: Mapping[str, ModelRoute] = field(default_factory=dict)
    needs_key: bool = False
    is_awaiting_keys: bool = False
    returned_keys: frozenset[str] = frozenset()
    taken_at: float | None = None

    def known_classes(self, model: str) -> frozenset[str]:
        """Return the traffic classes of `model`: its policy's; without a policy, `default` and those of API keys."""
        document = self.policies.get(model)
        if document is not None:
            return frozenset(document.policy.class_names)
        return frozenset({DEFAULT_CLASS, *(key.traffic_class for key in self.keys.values() if key.traffic_class)})

    def rules(self, model: str) -> tuple[MatchRule, ...]:
        """Return the match rules of `model`'s policy."""
        document = self.policies.get(model)
        return () if document is None else document.policy.match

    def policy_version(self, model: str) -> int:
        """Return the version of `model`'s policy; 0 when it has none."""
        document = self.policies.get(model)
        return 0 if document is None else document.version


def follow(previous: Snapshot, current: Snapshot, unseen: Snapshot) -> Snapshot:
    """Return the snapshot after `previous`, when Redis now holds `current`, and the documents `unseen` are kept."""
    return Snapshot(
        engines=current.engines + unseen.engines,
        policies={**unseen.policies, **current.policies},
        keys={**unseen.keys, **current.keys},
        model_routes={**unseen.model_routes, **current.model_routes},
        needs_key=previous.needs_key or current.needs_key or bool(current.keys),
        taken_at=current.taken_at,
    )


def without(snapshot: Snapshot, current: Snapshot) -> Snapshot:
    """Return `snapshot` without the documents that are in `current` too, also with other content."""
    engines = {record.engine_id for record in current.engines}
    keys = {key.key_id for key in current.keys.values()}
    return replace(
        snapshot,
        engines=tuple(record for record in snapshot.engines if record.engine_id not in engines),
        policies={model: item for model, item in snapshot.policies.items() if model not in current.policies},
        keys={digest: key for digest, key in snapshot.keys.items() if key.key_id not in keys},
        model_routes={name: item for name, item in snapshot.model_routes.items() if name not in current.model_routes},
    )


def by_hash(keys: Sequence[ApiKey]) -> dict[str, ApiKey]:
    """Return `keys` by SHA-256, the current hash and the previous one of a rotated key."""
    previous = {key.previous_sha256.lower(): key for key in keys if key.previous_sha256}
    return previous | {key.sha256.lower(): key for key in keys}


def keys_of(plain: object, say: Callable[[str], None] = lambda _: None) -> tuple[ApiKey, ...]:
    """Return the API keys in the parsed JSON of an API keys file. Raises `InvalidDocumentError` with every fault.

    `say` gets a line for each key from which white space was removed.
    """
    if not isinstance(plain, list):
        raise InvalidDocumentError("API keys file", (Fault("", "must be a JSON list of objects with key_id and key"),))
    faults: list[Fault] = []
    keys: list[ApiKey] = []
    for index, item in enumerate(plain):
        try:
            keys.append(_key_of(item, f"[{index}]", say))
        except InvalidDocumentError as error:
            faults.extend(Fault(f"[{index}].{fault.field}", fault.problem) for fault in error.faults)
    if faults:
        raise InvalidDocumentError("API keys file", tuple(faults))
    return tuple(keys)


def _key_of(item: object, place: str, say: Callable[[str], None]) -> ApiKey:
    stated = dict(item) if isinstance(item, dict) else {}
    key = stated.pop("key", None)
    if not isinstance(key, str) or not key:
        raise InvalidDocumentError("secret", (Fault("key", "must be text, and not empty"),))
    clean = secret("key", key, lambda line: say(f"{place}.{line}"))
    return from_plain(ApiKey, {**stated, "sha256": sha256_of(clean)})
