"""The document that a controller publishes for the engines of one pool: guidance for their law, and rows of K.

All values are frozen and checked at creation. `__post_init__` collects every fault of an object before it raises, so
that an operator sees all of them at once.

K is the number of draft tokens verified per request per step; K = 0 means no speculation. A pool is the set of engines
of one model on one kind of hardware in one configuration.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

from specpilot.policy.bands import BANDS, classes_in, row_parts
from specpilot.policy.names import (
    CLASS_LIMIT,
    DEFAULT_CLASS,
    K_LIMIT,
    is_class_name,
    model_name_faults,
    name_faults,
    raise_faults,
)

WEIGHT_LIMIT = 1000
"""A bound on a class's weight; it only catches typing errors."""

_STRICT: Mapping[str, Any] = {"extra": "forbid", "strict": False}

_OLD_THROUGHPUT = "goodput"
"""The former name of this objective in policies: read, never written."""


class Objective(StrEnum):
    """The quantity that the choice of K maximises."""

    THROUGHPUT = "throughput"  # weighted tokens per second of the engine
    LATENCY = "latency"  # tokens per second of one request

    @classmethod
    def _missing_(cls, value: object) -> "Objective | None":
        return cls.THROUGHPUT if value == _OLD_THROUGHPUT else None


class KRange(NamedTuple):
    """K for every number of running decode requests from `lo` to `hi`, both included.

    Written `[lo, hi, k]` in JSON, the shape of vLLM's own `num_speculative_tokens_per_batch_size`.
    """

    lo: int
    hi: int
    k: int


Ranges = Mapping[str, tuple[KRange, ...]]
"""Rows of K by name: a class, or one band of a class (`policy.bands`)."""


def k_at(ranges: Sequence[Sequence[int]], decodes: int) -> int:
    """Return the K of `ranges` (lo, hi, K) at `decodes` running decodes; above the last range its K applies."""
    for _, hi, k in ranges:
        if decodes <= hi:
            return k
    return ranges[-1][2]


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


@dataclass(frozen=True, slots=True)
class ClassGuidance:
    """The requirements of a policy for one class, for an engine's law.

    `weight` scales the class's tokens, `k_min` and `k_max` bound K (equal: K is pinned, and not probed), `itl_slo_ms`
    bounds the predicted mean inter-token latency, in milliseconds. An engine lowers bounds above its K_max to K_max.
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
        raise_faults(faults)


@dataclass(frozen=True, slots=True)
class Guidance:
    """The inputs of an engine's law besides its own measurements: the policy's objective, and requirements by class.

    A class that is not named has the requirements of `default`, which must exist. `probe_ratio` (0..1) is the share
    of the engine's time that pays for probes, free first drafts excepted; 0 means no probes.
    """

    __pydantic_config__: ClassVar = _STRICT
    objective: Objective
    classes: Mapping[str, ClassGuidance]
    probe_ratio: float = 0.0

    def __post_init__(self) -> None:
        faults = [] if DEFAULT_CLASS in self.classes else ["classes has no 'default'"]
        if not 0 <= self.probe_ratio <= 1:
            faults.append(f"probe_ratio is {self.probe_ratio}; it must be between 0 and 1")
        if len(self.classes) > CLASS_LIMIT:
            faults.append(f"classes names {len(self.classes)} classes; at most {CLASS_LIMIT}")
        faults.extend(
            f"classes.{name} is not a class name (lower case, at most 32 characters)"
            for name in self.classes
            if not is_class_name(name)
        )
        raise_faults(faults)

    @property
    def is_pinned(self) -> bool:
        """Whether it leaves no choice: each class has one K."""
        return all(guidance.k_min == guidance.k_max for guidance in self.classes.values())


@dataclass(frozen=True, slots=True)
class FleetAcceptance:
    """The trials and accepts of each draft position, over all engines of a model: [bands][positions].

    A prior for engines with few counts of their own. The counts of the newest drafts weigh most. All rows have one
    length.
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
    its K applies. `policy.bands.row_of` gives the row of a request; `default` must exist. `like_default` are classes
    without rows of their own, whose evidence an engine counts separately.

    `version` grows with every publication, and an engine never returns to an older one. `issued_at` is in Unix seconds.
    The schedule expires `valid_for_s` seconds after an engine received it. The engine then holds it for a further time
    of its own, and afterwards runs its static K. An engine that adapts by itself does not hold rows, and chooses K
    afterwards. `probe_ratio` is that of `Guidance`, for engines that follow
    `classes`.

    With `guidance` each engine chooses K itself, and `classes` apply only until its law has enough evidence. `fleet` is
    the acceptance that its law uses as a prior. `drawn` are the engines in a window of an experiment, which ends at
    `drawn_until` (Unix seconds, by the clock of `issued_at`; `None`: when the schedule expires). Until then they follow
    `drawn_guidance` in place of `guidance`. Where this is `None`, engines follow `classes`.

    | experiment                         | guidance             | drawn_guidance |
    |------------------------------------|----------------------|----------------|
    | control group                      | the policy's         | `None`         |
    | control group of a pool fallen back | `None`              | the policy's   |
    | canary                             | the present policy's | the canary's   |
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
    drawn_until: float | None = None
    drawn_guidance: Guidance | None = None

    def __post_init__(self) -> None:
        faults = [*model_name_faults("model", self.model), *name_faults(pool=self.pool)]
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
        raise_faults(faults)

    def guidance_of(self, engine_id: str) -> Guidance | None:
        """Return the guidance of the engine `engine_id` while its window lasts; `None`: it follows rows."""
        return self.drawn_guidance if engine_id in self.drawn else self.guidance

    @property
    def is_fallen_back(self) -> bool:
        """Whether engines follow the static K, and choose in windows of an experiment only."""
        return self.guidance is None and self.drawn_guidance is not None

    @property
    def drawn_for_s(self) -> float:
        """Seconds from its receipt for which engines are in the window that they were drawn for."""
        return (
            self.valid_for_s if self.drawn_until is None else min(self.valid_for_s, self.drawn_until - self.issued_at)
        )


def _row_faults(name: str) -> list[str]:
    """Return why `name` cannot name a schedule's row."""
    try:
        traffic_class, _ = row_parts(name)
    except ValueError as error:
        return [f"classes.{error}"]
    if is_class_name(traffic_class):
        return []
    return [f"classes.{name} is not a class name (lower case, at most 32 characters)"]
