"""The documents that the gateway, the controller and the engine adapter share.

All are frozen and checked at creation: a value of these types is valid. `__post_init__` collects every fault of an
object before it raises, so that an operator sees all of them at once. Standard library only; the `__pydantic_config__`
attributes are plain dictionaries that the codec's validator reads.

Words: K is the number of draft tokens verified per request per step; K = 0 means no speculation. A pool is
the set of engines of one model on one kind of hardware in one configuration.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

from specpilot.policy.bands import BANDS, classes_in, row_parts
from specpilot.policy.graphs import Graphs

DEFAULT_CLASS = "default"
"""The traffic class of a request that no rule matches, and of one whose class an engine does not know."""

OTHER = "other"
"""The label value for every unknown model or class; it bounds cardinality."""

CLASS_LIMIT = 16
"""Traffic classes of one model at most, `default` included."""

K_LIMIT = 64
"""Upper bound on K. No drafter of today reaches it; it bounds memory and catches typing errors."""

PRIORITY_LIMIT = 1000
"""A bound on a class's priority, both ways; it only catches typing errors."""

WEIGHT_LIMIT = 1000
"""A bound on a class's weight; it only catches typing errors."""

RULE_LIMIT = 256
"""Match rules of a policy at most; it bounds the size of its history."""

PATH_LIMIT = 256
"""Characters of a match rule's path at most."""

RATE_LIMIT_MAX = 1_000_000_000
"""A bound on an API key's limits; it only catches typing errors."""

ALLOWED_MODELS_LIMIT = 256
"""Models that an API key may name at most; each of its requests searches them."""

_NAME = re.compile(r"[!-~]{1,256}")
_MODEL_NAME_CHARS = 256
_CLASS_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_STRICT: Mapping[str, Any] = {"extra": "forbid", "strict": False}


class Mode(StrEnum):
    """What the controller may do for one model."""

    OFF = "off"  # publish the static K
    ADVISE = "advise"  # decide and record, publish nothing: engines stay on their static K
    ACT = "act"  # publish the decisions


_OLD_THROUGHPUT = "goodput"
"""The former name of this objective in policies: read, never written."""


class Objective(StrEnum):
    """What the control law maximises."""

    THROUGHPUT = "throughput"  # weighted tokens per second of the engine
    LATENCY = "latency"  # tokens per second of one request

    @classmethod
    def _missing_(cls, value: object) -> "Objective | None":
        return cls.THROUGHPUT if value == _OLD_THROUGHPUT else None


def is_class_name(name: str) -> bool:
    """Whether `name` may name a traffic class: lower case, at most 32 characters."""
    return _CLASS_NAME.fullmatch(name) is not None


def is_name(name: str) -> bool:
    """Whether `name` may name a pool or an engine: 1 to 256 printable ASCII characters, no space."""
    return _NAME.fullmatch(name) is not None


def is_model_name(name: str) -> bool:
    """Whether `name` may name a model: 1 to 256 printable characters of any script, no space at its ends."""
    return 1 <= len(name) <= _MODEL_NAME_CHARS and name.isprintable() and name.strip() == name


def model_name_faults(label: str, name: str) -> list[str]:
    """Return why `name` cannot name a model."""
    fault = f"{label} {name!r} must be 1 to {_MODEL_NAME_CHARS} printable characters without a space at its ends"
    return [] if is_model_name(name) else [fault]


def _raise(faults: list[str]) -> None:
    if faults:
        raise ValueError("; ".join(faults))


def _name_faults(**names: str) -> list[str]:
    return [
        f"{label} {name!r} must be 1 to 256 printable ASCII characters without a space"
        for label, name in names.items()
        if not is_name(name)
    ]


def rate_faults(**limits: int | None) -> list[str]:
    """Return why `limits`, each a number of requests or tokens or none, cannot be those of an API key."""
    return [
        f"{label} is {limit}; it must be between 1 and {RATE_LIMIT_MAX}, or left out for no limit"
        for label, limit in limits.items()
        if limit is not None and not 1 <= limit <= RATE_LIMIT_MAX
    ]


def ceiling_faults(k_max: int | None) -> list[str]:
    """Return why `k_max` cannot be an API key's ceiling on K."""
    if k_max is None or 0 <= k_max <= K_LIMIT:
        return []
    return [f"k_max is {k_max}; it must be between 0 (no speculation) and {K_LIMIT}, or left out for no ceiling"]


def model_faults(allowed_models: tuple[str, ...] | None) -> list[str]:
    """Return why `allowed_models` cannot be those of an API key."""
    names = allowed_models or ()
    faults = [f"allowed_models: {fault}" for name in names for fault in model_name_faults("model", name)]
    if len(names) > ALLOWED_MODELS_LIMIT:
        faults.append(f"allowed_models names {len(names)} models; at most {ALLOWED_MODELS_LIMIT}")
    return faults


class KRange(NamedTuple):
    """K for every number of running decode requests from `lo` to `hi`, both included.

    Written `[lo, hi, k]` in JSON, the shape of vLLM's own `num_speculative_tokens_per_batch_size`.
    """

    lo: int
    hi: int
    k: int


def range_faults(ranges: tuple[KRange, ...]) -> list[str]:
    """Return why `ranges` is no row of a schedule: they must begin at 1, without gap or overlap."""
    if not ranges:
        return ["has no range; give at least [[1, 1, K]]"]
    faults = []
    for lo, hi, k in ranges:
        if hi < lo:
            faults.append(f"[{lo}, {hi}, {k}] ends before it begins")
        if not 0 <= k <= K_LIMIT:
            faults.append(f"[{lo}, {hi}, {k}] has K {k}; it must be between 0 and {K_LIMIT}")
    if ranges[0].lo != 1:
        faults.append(f"the first range begins at {ranges[0].lo}; running decodes count from 1")
    for before, after in pairwise(ranges):
        if after.lo <= before.hi:
            faults.append(
                f"[{after.lo}, {after.hi}] overlaps or precedes [{before.lo}, {before.hi}]; begin it at {before.hi + 1}"
            )
        elif after.lo > before.hi + 1:
            faults.append(f"nothing covers {before.hi + 1} to {after.lo - 1}; close the gap")
    return faults


def _row_faults(name: str) -> list[str]:
    """Return why `name` cannot name a schedule's row."""
    try:
        traffic_class, _ = row_parts(name)
    except ValueError as error:
        return [f"classes.{error}"]
    if is_class_name(traffic_class):
        return []
    return [f"classes.{name} is not a class name (lower case, at most 32 characters)"]


@dataclass(frozen=True, slots=True)
class ClassGuidance:
    """What a policy asks of an engine's law for one class.

    `weight` scales the class's tokens, `k_min` and `k_max` bound K (equal: K is pinned, and not probed), `itl_slo_ms`
    bounds the predicted mean inter-token latency, in milliseconds. An engine moves bounds above its K_max down to it.
    """

    __pydantic_config__: ClassVar = _STRICT
    weight: float = 1.0
    k_min: int = 0
    k_max: int = K_LIMIT
    itl_slo_ms: float | None = None

    def __post_init__(self) -> None:
        faults = []
        if not 0 < self.weight <= WEIGHT_LIMIT:
            faults.append(f"weight is {self.weight}; it must be above 0 and at most {WEIGHT_LIMIT}")
        if not 0 <= self.k_min <= self.k_max <= K_LIMIT:
            faults.append(f"k_min {self.k_min} and k_max {self.k_max} must be in order, between 0 and {K_LIMIT}")
        if self.itl_slo_ms is not None and not 0 < self.itl_slo_ms < math.inf:
            faults.append(f"itl_slo_ms is {self.itl_slo_ms}; it must be above 0 and finite")
        _raise(faults)


@dataclass(frozen=True, slots=True)
class Guidance:
    """What an engine's law chooses K by, besides its own measurements: the policy's objective and wishes by class.

    A class that is not named has the wishes of `default`, which must exist.
    """

    __pydantic_config__: ClassVar = _STRICT
    objective: Objective
    classes: Mapping[str, ClassGuidance]

    def __post_init__(self) -> None:
        faults = [] if DEFAULT_CLASS in self.classes else ["classes has no 'default'"]
        if len(self.classes) > CLASS_LIMIT:
            faults.append(f"classes names {len(self.classes)} classes; at most {CLASS_LIMIT}")
        faults.extend(
            f"classes.{name} is not a class name (lower case, at most 32 characters)"
            for name in self.classes
            if not is_class_name(name)
        )
        _raise(faults)


@dataclass(frozen=True, slots=True)
class FleetAcceptance:
    """How often each draft position was tried and accepted by the engines of a model together: [bands][positions].

    A prior for engines that have counted little; the counts of the newest drafts weigh most. All rows have one length.
    """

    __pydantic_config__: ClassVar = _STRICT
    trials: tuple[tuple[float, ...], ...]
    accepts: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        shapes = {len(row) for row in (*self.trials, *self.accepts)}
        if len(self.trials) != BANDS or len(self.accepts) != BANDS or len(shapes) != 1 or max(shapes) > K_LIMIT:
            raise ValueError(
                f"fleet must have {BANDS} rows of trials and accepts, all of one length, {K_LIMIT} at most"
            )
        pairs = [pair for rows in zip(self.trials, self.accepts, strict=True) for pair in zip(*rows, strict=True)]
        if not all(0 <= accepted <= tried < math.inf for tried, accepted in pairs):
            raise ValueError("fleet must have finite trials, and accepts between 0 and the trials")


@dataclass(frozen=True, slots=True)
class Schedule:
    """K by traffic class, band and running decode requests, for the engines of one (model, pool).

    `classes` maps a class, or one band of a class (`code:7`, see `policy.bands`), to its ranges; above the last range
    its K holds. `policy.bands.row_of` gives the row of a request; `default` must exist. `version` grows with every
    publication, and an engine never returns to an older one. `issued_at` is in Unix seconds. `valid_for_s` seconds
    after an engine received it the schedule is stale: the engine holds its rows for a time of its own, then falls back
    to its static K. `probe_ratio` (0..1) is about the share of the engine's time for probes; 0 switches them off.
    `like_default` are classes without rows of their own, whose evidence an engine counts separately. With `guidance`
    each engine chooses K itself, and `classes` hold only where its law knows nothing yet; `fleet` is the acceptance
    that its law begins with. `drawn` are the engines in a window of the control group: while the schedule is valid they
    follow `classes`. Where the pool `is_fallen_back` to the static K it is the reverse: all others follow `classes`.
    """

    __pydantic_config__: ClassVar = _STRICT
    model: str
    pool: str
    version: int
    issued_at: float
    valid_for_s: float
    probe_ratio: float
    classes: Mapping[str, tuple[KRange, ...]]
    like_default: tuple[str, ...] = ()
    guidance: Guidance | None = None
    fleet: FleetAcceptance | None = None
    drawn: tuple[str, ...] = ()
    is_fallen_back: bool = False

    def __post_init__(self) -> None:
        faults = [*model_name_faults("model", self.model), *_name_faults(pool=self.pool)]
        if self.version < 0:
            faults.append(f"version is {self.version}; it must not be negative")
        if not 0 < self.valid_for_s <= 86_400:  # noqa: PLR2004 - a day
            faults.append(f"valid_for_s is {self.valid_for_s}; it must be above 0 and at most 86400")
        if not 0 <= self.probe_ratio <= 1:
            faults.append(f"probe_ratio is {self.probe_ratio}; it must be between 0 and 1")
        if DEFAULT_CLASS not in self.classes:
            faults.append("classes has no 'default'; requests of unknown classes need it")
        named = classes_in(self.classes) | set(self.like_default)
        faults.extend(
            f"like_default names {name!r}, which is no class name or has rows of its own"
            for name in self.like_default
            if not is_class_name(name) or name in classes_in(self.classes)
        )
        if len(named) > CLASS_LIMIT:
            faults.append(f"classes names {len(named)} classes; at most {CLASS_LIMIT}")
        for name, ranges in self.classes.items():
            faults.extend(_row_faults(name))
            faults.extend(f"classes.{name}: {fault}" for fault in range_faults(ranges))
        _raise(faults)

    def is_guided(self, engine_id: str) -> bool:
        """Return whether `engine_id` chooses K by the guidance; otherwise it follows rows."""
        return self.guidance is not None and (engine_id in self.drawn) is self.is_fallen_back

    @property
    def deepest_k(self) -> int:
        """The largest K anywhere in the schedule."""
        return max(item.k for ranges in self.classes.values() for item in ranges)


@dataclass(frozen=True, slots=True)
class ClassPolicy:
    """What an operator wants for one traffic class of one model.

    `weight` scales the class's tokens in the objective, and its share of the places that become free while requests
    wait in a gateway. There a higher `priority` always goes first. `k_min` and `k_max` bound K; `None` keeps the
    model's bound. `pin` fixes K, also outside the model's bounds. `itl_slo_ms` is the largest mean inter-token latency,
    in milliseconds, that the law may predict for the class.
    """

    __pydantic_config__: ClassVar = _STRICT
    weight: float = 1.0
    k_min: int | None = None
    k_max: int | None = None
    pin: int | None = None
    itl_slo_ms: float | None = None
    priority: int = 0

    def __post_init__(self) -> None:
        faults = []
        if not -PRIORITY_LIMIT <= self.priority <= PRIORITY_LIMIT:
            faults.append(f"priority is {self.priority}; it must be between -{PRIORITY_LIMIT} and {PRIORITY_LIMIT}")
        if not 0 < self.weight <= WEIGHT_LIMIT:
            faults.append(f"weight is {self.weight}; it must be above 0 and at most {WEIGHT_LIMIT}")
        for label in ("k_min", "k_max", "pin"):
            value = getattr(self, label)
            if value is not None and not 0 <= value <= K_LIMIT:
                faults.append(f"{label} is {value}; it must be between 0 and {K_LIMIT}")
        if self.k_min is not None and self.k_max is not None and self.k_min > self.k_max:
            faults.append(f"k_min {self.k_min} is above k_max {self.k_max}")
        if self.pin is not None and self.k_min is not None and self.pin < self.k_min:
            faults.append(f"pin {self.pin} is below the class's own k_min {self.k_min}; remove one of the two")
        if self.pin is not None and self.k_max is not None and self.pin > self.k_max:
            faults.append(f"pin {self.pin} is above the class's own k_max {self.k_max}; remove one of the two")
        if self.itl_slo_ms is not None and not 0 < self.itl_slo_ms < math.inf:
            faults.append(f"itl_slo_ms is {self.itl_slo_ms}; it must be above 0 and finite")
        _raise(faults)


@dataclass(frozen=True, slots=True)
class MatchRule:
    """Gives `traffic_class` to a request that meets every stated condition. The first rule that matches wins.

    `path` is the request path; `stream` whether it streams; `has_tools` and `has_response_format` whether the
    body names tools or a response format; `max_tokens_at_most` and `prompt_chars_at_least` bound the sizes.
    """

    __pydantic_config__: ClassVar = _STRICT
    traffic_class: str
    path: str | None = None
    stream: bool | None = None
    has_tools: bool | None = None
    has_response_format: bool | None = None
    max_tokens_at_most: int | None = None
    prompt_chars_at_least: int | None = None

    def __post_init__(self) -> None:
        if not is_class_name(self.traffic_class):
            raise ValueError(f"traffic_class {self.traffic_class!r} is not a class name")
        if self.path is not None and len(self.path) > PATH_LIMIT:
            raise ValueError(f"path has {len(self.path)} characters; at most {PATH_LIMIT}")


@dataclass(frozen=True, slots=True)
class Policy:
    """What an operator wants for one model. Written by people, through the admin API.

    `static_k` is the K that the controller publishes in mode `off`, in windows of the control group and where nothing
    is known; `None`: each engine's own static K, at which an engine without a schedule runs in any case.
    `probe_ratio` (0..1) bounds the share of an engine's time for probes. `hold_out_ratio` (0..1) is the share of the
    time that an engine runs the static K as control group, to measure the gain of adaptive K over it; 0 switches that
    off.
    """

    __pydantic_config__: ClassVar = _STRICT
    model: str
    mode: Mode = Mode.ACT
    objective: Objective = Objective.THROUGHPUT
    static_k: int | None = None
    k_min: int = 0
    k_max: int | None = None
    probe_ratio: float = 0.005
    hold_out_ratio: float = 0.01
    classes: Mapping[str, ClassPolicy] = field(default_factory=dict)
    match: tuple[MatchRule, ...] = ()

    def __post_init__(self) -> None:
        faults = model_name_faults("model", self.model)
        for label, value in (("static_k", self.static_k), ("k_min", self.k_min), ("k_max", self.k_max)):
            if value is not None and not 0 <= value <= K_LIMIT:
                faults.append(f"{label} is {value}; it must be between 0 and {K_LIMIT}")
        if self.k_max is not None and self.k_min > self.k_max:
            faults.append(f"k_min {self.k_min} is above k_max {self.k_max}")
        if not 0 <= self.probe_ratio <= 0.5:  # noqa: PLR2004 - more is no probe
            faults.append(f"probe_ratio is {self.probe_ratio}; it must be between 0 and 0.5")
        if not 0 <= self.hold_out_ratio <= 0.5:  # noqa: PLR2004 - the control group is the smaller part
            faults.append(f"hold_out_ratio is {self.hold_out_ratio}; it must be between 0 and 0.5")
        named = set(self.classes) | {DEFAULT_CLASS}
        if len(named) > CLASS_LIMIT:
            faults.append(f"classes names {len(named)} classes, default included; at most {CLASS_LIMIT}")
        faults.extend(
            f"classes.{name} is not a class name (lower case, at most 32 characters)"
            for name in self.classes
            if not is_class_name(name)
        )
        if len(self.match) > RULE_LIMIT:
            faults.append(f"match has {len(self.match)} rules; at most {RULE_LIMIT}")
        faults.extend(
            f"match[{index}].traffic_class {rule.traffic_class!r} is not one of the policy's classes"
            for index, rule in enumerate(self.match)
            if rule.traffic_class not in named
        )
        _raise(faults)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Every class of the model, `default` first."""
        return (DEFAULT_CLASS, *sorted(set(self.classes) - {DEFAULT_CLASS}))

    def of_class(self, name: str) -> ClassPolicy:
        """Return the wishes for class `name`; the defaults where the policy states none."""
        return self.classes.get(name) or ClassPolicy()


@dataclass(frozen=True, slots=True)
class VersionedPolicy:
    """A policy as it is stored: `version` is the ETag, `updated_at` Unix seconds."""

    version: int
    updated_at: float
    policy: Policy


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A client's key as it is stored: only its SHA-256, never the key.

    `traffic_class` is the class of its requests that state none; `allowed_classes` those that a request may state
    by header, `None`: every class of the model. `requests_per_minute`, `tokens_per_minute` and
    `max_concurrent_requests` (under way at once, those that wait included) are its limits over all gateways together,
    `None` for none. `allowed_models` are the names that its requests may ask for, `None` meaning any. `k_max` is the
    ceiling on K of its requests, `None` for none. From `expires_at` (Unix seconds) on it is refused; `None`: it does
    not expire. After a rotation the former secret, `previous_sha256`, is valid until `previous_expires_at`.
    """

    key_id: str
    sha256: str
    traffic_class: str | None = None
    allowed_classes: tuple[str, ...] | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    expires_at: float | None = None
    previous_sha256: str | None = None
    previous_expires_at: float | None = None
    allowed_models: tuple[str, ...] | None = None
    max_concurrent_requests: int | None = None
    k_max: int | None = None

    def __post_init__(self) -> None:
        limits = rate_faults(
            requests_per_minute=self.requests_per_minute,
            tokens_per_minute=self.tokens_per_minute,
            max_concurrent_requests=self.max_concurrent_requests,
        )
        _raise([*limits, *model_faults(self.allowed_models), *ceiling_faults(self.k_max)])

    def admits(self, sha256: str, now: float) -> bool:
        """Whether the key with this hash is accepted at `now`."""
        if self.expires_at is not None and now >= self.expires_at:
            return False
        if sha256 == self.sha256.lower():
            return True
        return sha256 == self.previous_sha256 and (self.previous_expires_at is None or now < self.previous_expires_at)

    @property
    def has_limits(self) -> bool:
        """Whether it has any limit on its rate or concurrency."""
        return (
            self.requests_per_minute is not None
            or self.tokens_per_minute is not None
            or self.max_concurrent_requests is not None
        )

    def may_use(self, model: str) -> bool:
        """Whether its requests may ask for `model`."""
        return self.allowed_models is None or model in self.allowed_models


@dataclass(frozen=True, slots=True)
class GatewayUsage:
    """The demand under each limited key that one gateway reports every second; also its sign of life.

    `demand` maps a key's id to a multiple of the key's limit over all gateways together. Keys without demand are left
    out.
    """

    gateway_id: str
    demand: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class EngineRecord:
    """The facts that an engine reports with every heartbeat.

    `k_max` is `num_speculative_tokens` at its start (0: it cannot speculate), `static_k` its K without a valid
    schedule, `max_num_seqs` the largest number of running requests, `method` vLLM's name of the
    drafter, `schedule_version` the version in force (0: none), `graphs` its CUDA graphs, `None` where it runs
    without. `stalled`: it has requests, and no step has ended for far longer than a step takes. Times are Unix
    seconds.
    """

    engine_id: str
    url: str
    model: str
    pool: str
    k_max: int
    static_k: int
    max_num_seqs: int
    method: str
    vllm_version: str
    adapter_version: str
    started_at: float
    heartbeat_at: float
    schedule_version: int = 0
    draining: bool = False
    graphs: Graphs | None = None
    stalled: bool = False

    def __post_init__(self) -> None:
        faults = _name_faults(engine_id=self.engine_id, pool=self.pool)
        _raise([*faults, *model_name_faults("model", self.model)])


@dataclass(frozen=True, slots=True)
class Decision:
    """One controller tick for one (model, pool): its evidence, its choice and the reason.

    `reason` is a value of the controller's `Reason`. `evidence` holds every number that the law used, `schedule` is its
    choice, `published` whether a schedule was sent; in the modes `off` and `advise` the sent one states the static K.
    `k` is K by class, as sent, at the load of the tick. `predicted_gain_ratio` is
    the predicted throughput over that of the schedule in force, minus 1; `None` when it could not be predicted.
    """

    at: float
    model: str
    pool: str
    mode: Mode
    reason: str
    published: bool
    version: int
    schedule: Schedule | None
    predicted_gain_ratio: float | None
    evidence: Mapping[str, Any]
    k: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Lease:
    """Leadership of one controller: `fence` grows with every change of leader and goes with each write."""

    holder: str
    fence: int
