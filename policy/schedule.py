"""The document that a controller publishes for the engines of one pool: guidance for the law by which they choose K.

All values are frozen and checked at creation.

K is the number of draft tokens verified per request per step; K = 0 means no speculation. A pool is the set of engines
of one model on one kind of hardware in one configuration.
"""

import math
from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import Annotated, NamedTuple

from pydantic import Field, NonNegativeInt, PositiveFloat
from pydantic.dataclasses import dataclass

from specpilot.policy.bands import BANDS
from specpilot.policy.latency_goal import Slo
from specpilot.policy.names import CLASS_LIMIT, DEFAULT_CLASS, K_LIMIT, STRICT, ClassName, K, ModelName, Name

WEIGHT_LIMIT = 1000
"""A bound on a class's weight; it only catches typing errors."""

Weight = Annotated[float, Field(gt=0, le=WEIGHT_LIMIT)]


class Objective(StrEnum):
    """The quantity that the choice of K maximises."""

    THROUGHPUT = "throughput"  # weighted tokens per second of the engine
    LATENCY = "latency"  # tokens per second of one request


class KRange(NamedTuple):
    """K for every number of running decode requests from `lo` to `hi`, both included.

    Written `[lo, hi, k]` in JSON, the shape of vLLM's own `num_speculative_tokens_per_batch_size`.
    """

    lo: int
    hi: int
    k: int


@dataclass(frozen=True, slots=True, config=STRICT)
class ClassGuidance:
    """The requirements of a policy for one class, for an engine's law.

    `weight` scales the class's tokens, `k_min` and `k_max` bound K (equal: K is pinned, and not probed).
    `tpot_bound_ms` bounds the predicted mean inter-token latency. An engine lowers bounds above its K_max to K_max.
    `slo` are the goals that it counts requests by; their bound on the prediction is `tpot_bound_ms`.
    """

    weight: Weight = 1.0
    k_min: K = 0
    k_max: K = K_LIMIT
    tpot_bound_ms: PositiveFloat | None = None
    slo: Slo | None = None

    def __post_init__(self) -> None:
        if self.k_min > self.k_max:
            raise ValueError(f"k_min {self.k_min} is above k_max {self.k_max}")


class Cause(StrEnum):
    """Why K is fixed in place of the law's choice."""

    OFF = "off"  # the policy's mode
    ADVISE = "advise"  # the policy's mode
    FROZEN = "frozen"
    CONTROL_GROUP = "control_group"  # a window of it
    FALLEN_BACK = "fallen_back"
    OPERATOR = "operator"  # `PUT /speculation`


@dataclass(frozen=True, slots=True, config=STRICT)
class Override:
    """K in place of the law's choice: `k` for all requests.

    An operator's K ignores the bounds of classes, that of an experiment keeps them (`is_bounded`). With `None` K stays
    as it is, by group of requests, when an engine receives this; an engine that has received no schedule before, such
    as one that was restarted, runs the static K. `until` (Unix seconds, by the clock of `issued_at`): its end; `None`:
    the next schedule ends it.
    """

    k: K | None = None
    cause: Cause = Cause.OPERATOR
    until: float | None = None

    @property
    def is_bounded(self) -> bool:
        """Whether K is moved inside the bounds of each class."""
        return self.cause in (Cause.CONTROL_GROUP, Cause.FALLEN_BACK)


@dataclass(frozen=True, slots=True, config=STRICT)
class Guidance:
    """The inputs of an engine's law besides its own measurements: the policy's objective, and requirements by class.

    A class that is not named has the requirements of `default`, which must exist. `probe_ratio` (0..1) is the share
    of the engine's time that pays for probes, free first drafts excepted; 0 means no probes. `static_k` is K until the
    law has enough evidence; `None`: the engine's own static K. With `override` the law does not choose K. With
    `limit_running` engines limit the requests that run, where no K keeps a latency goal.
    """

    objective: Objective = Objective.THROUGHPUT
    classes: Annotated[Mapping[ClassName, ClassGuidance], Field(max_length=CLASS_LIMIT)] = field(
        default_factory=lambda: {DEFAULT_CLASS: ClassGuidance()}
    )
    probe_ratio: Annotated[float, Field(ge=0, le=1)] = 0.0
    static_k: K | None = None
    override: Override | None = None
    limit_running: bool = False

    def __post_init__(self) -> None:
        if DEFAULT_CLASS not in self.classes:
            raise ValueError("classes has no 'default'")

    @property
    def is_pinned(self) -> bool:
        """Whether it leaves no choice: each class has one K."""
        return all(item.k_min == item.k_max for item in self.classes.values())

    def fixed_k(self, k: int, k_max: int, *, is_bounded: bool = True) -> dict[str, int]:
        """Return `k` by class on an engine of this `k_max`, if `is_bounded` moved inside the bounds of the class."""
        bounded = {name: min(max(k, item.k_min), item.k_max, k_max) for name, item in self.classes.items()}
        return bounded if is_bounded else dict.fromkeys(self.classes, min(k, k_max))


@dataclass(frozen=True, slots=True, config=STRICT)
class FleetAcceptance:
    """The trials and accepts of each draft position, over all engines of a model: [bands][positions].

    A prior for engines with few counts of their own. The counts of the newest drafts weigh most. All rows have one
    length.
    """

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


@dataclass(frozen=True, slots=True, config=STRICT)
class Schedule:
    """The guidance for the engines of one (model, pool).

    `version` grows with every publication, and an engine never returns to an older one. `issued_at` is in Unix seconds.
    A schedule has no end: the last one holds until a newer one replaces it, also without a controller.

    `fleet` is the acceptance that the engines' laws use as a prior. `drawn` are the engines in a window of an
    experiment, which ends at `drawn_until` (Unix seconds, by the clock of `issued_at`; `None`: with the next schedule).
    Until then they follow `drawn_guidance`.

    | experiment                          | override of `guidance` | override of `drawn_guidance` |
    |-------------------------------------|------------------------|------------------------------|
    | control group                       | none                   | the static K                 |
    | control group of a pool fallen back | the static K           | none                         |
    | canary                              | the present policy's   | the canary's                 |
    """

    model: ModelName
    pool: Name
    version: NonNegativeInt
    issued_at: float
    guidance: Guidance
    fleet: FleetAcceptance | None = None
    drawn: tuple[str, ...] = ()
    drawn_until: float | None = None
    drawn_guidance: Guidance | None = None

    def guidance_of(self, engine_id: str) -> Guidance:
        """Return the guidance of the engine `engine_id` while its window lasts."""
        return self.drawn_guidance or self.guidance if engine_id in self.drawn else self.guidance

    @property
    def override(self) -> Override | None:
        """The override of engines that are not drawn."""
        return self.guidance.override

    @property
    def is_fallen_back(self) -> bool:
        """Whether engines follow the static K, and choose in windows of an experiment only."""
        return self.override is not None and self.override.cause is Cause.FALLEN_BACK

    @property
    def drawn_for_s(self) -> float:
        """Seconds from its receipt for which engines are in the window that they were drawn for."""
        return math.inf if self.drawn_until is None else self.drawn_until - self.issued_at
