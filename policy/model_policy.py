"""The policy of one model, which operators write through the admin API: mode, objective, bounds, classes and rules.

All values are frozen and checked at creation: each field by its type, then fields against each other.
"""

from collections.abc import Mapping
from dataclasses import InitVar, field
from enum import StrEnum
from typing import Annotated

from pydantic import Field, PositiveFloat
from pydantic.dataclasses import dataclass

from specpilot.policy.latency_goal import LEAST_MS, MOST_MS, Slo, Statistic
from specpilot.policy.names import CLASS_LIMIT, DEFAULT_CLASS, STRICT, ClassName, K, ModelName, raise_faults
from specpilot.policy.schedule import Objective, Weight

PRIORITY_LIMIT = 1000
"""A bound on a class's priority, both ways; it only catches typing errors."""

RULE_LIMIT = 256
"""Match rules of a policy at most; it bounds the size of its history."""

PATH_LIMIT = 256
"""Characters of a match rule's path at most."""

_Ratio = Annotated[float, Field(ge=0, le=0.5)]


class Mode(StrEnum):
    """The scope of the controller for one model."""

    OFF = "off"  # publish the static K
    ADVISE = "advise"  # the same, to compare it with what engines would choose
    ACT = "act"  # publish guidance, by which engines choose K


@dataclass(frozen=True, slots=True, config=STRICT)
class ClassPolicy:
    """The settings of an operator for one traffic class of one model.

    `weight` scales the class's tokens in the objective, and its share of the places that become free while requests
    wait in a gateway. Among waiting requests a higher `priority` always goes first. `k_min` and `k_max` bound K; `None`
    keeps the model's bound. `pin` fixes K, also outside the model's bounds. `slo` are the class's latency goals; `None`
    keeps the model's. `itl_slo_ms` is the former name of `slo.tpot_ms.mean`: read, never written.
    """

    weight: Weight = 1.0
    k_min: K | None = None
    k_max: K | None = None
    pin: K | None = None
    slo: Slo | None = None
    priority: Annotated[int, Field(ge=-PRIORITY_LIMIT, le=PRIORITY_LIMIT)] = 0
    itl_slo_ms: InitVar[PositiveFloat | None] = None

    def __post_init__(self, itl_slo_ms: float | None) -> None:
        faults = [] if self.k_max is None or (self.k_min or 0) <= self.k_max else [_crossed(self.k_min, self.k_max)]
        if self.pin is not None and self.k_min is not None and self.pin < self.k_min:
            faults.append(f"pin {self.pin} is below the class's own k_min {self.k_min}; remove one of the two")
        if self.pin is not None and self.k_max is not None and self.pin > self.k_max:
            faults.append(f"pin {self.pin} is above the class's own k_max {self.k_max}; remove one of the two")
        if itl_slo_ms is not None and self.slo is not None:
            faults.append("itl_slo_ms is the former name of slo.tpot_ms.mean; give only slo")
        raise_faults(faults)
        if itl_slo_ms is not None:  # it had no such bounds, and stored policies must stay readable
            ms = min(max(itl_slo_ms, LEAST_MS), MOST_MS)
            object.__setattr__(self, "slo", Slo(tpot_ms={Statistic.MEAN: ms}))


@dataclass(frozen=True, slots=True, config=STRICT)
class MatchRule:
    """Gives `traffic_class` to a request that meets every stated condition. The first rule that matches wins.

    `path` is the request path; `stream` whether the request streams; `has_tools` and `has_response_format` whether the
    body names tools or a response format; `max_tokens_at_most` and `prompt_chars_at_least` bound the sizes.
    """

    traffic_class: ClassName
    path: Annotated[str, Field(max_length=PATH_LIMIT)] | None = None
    stream: bool | None = None
    has_tools: bool | None = None
    has_response_format: bool | None = None
    max_tokens_at_most: int | None = None
    prompt_chars_at_least: int | None = None


@dataclass(frozen=True, slots=True, config=STRICT)
class Policy:
    """The settings of an operator for one model, written through the admin API.

    `static_k` is the K that the controller publishes for modes `off` and `advise`, for windows of the control group,
    after a fall back, for a freeze that holds it, and for engines that cannot choose K yet. `None`: the engines' own
    static K, of a pool the smallest.
    `probe_ratio` (0..0.5) is the share of an engine's time that pays for probes. `control_group_ratio` (0..0.5) is the
    share of time that an engine runs the static K as control group, to measure the gain of adaptive K; 0 means no
    control group. `slo` are the latency goals of classes that have none of their own. With `limit_running` engines
    limit the requests that run where no K keeps a latency goal, and gateways hold the others.
    """

    model: ModelName
    mode: Mode = Mode.ACT
    objective: Objective = Objective.THROUGHPUT
    static_k: K | None = None
    k_min: K = 0
    k_max: K | None = None
    probe_ratio: _Ratio = 0.005
    control_group_ratio: _Ratio = 0.01
    slo: Slo | None = None
    limit_running: bool = False
    classes: Mapping[ClassName, ClassPolicy] = field(default_factory=dict)
    match: Annotated[tuple[MatchRule, ...], Field(max_length=RULE_LIMIT)] = ()

    def __post_init__(self) -> None:
        faults = [] if self.k_max is None or self.k_min <= self.k_max else [_crossed(self.k_min, self.k_max)]
        named = set(self.classes) | {DEFAULT_CLASS}
        if len(named) > CLASS_LIMIT:
            faults.append(f"classes names {len(named)} classes, default included; at most {CLASS_LIMIT}")
        faults.extend(
            f"match[{index}].traffic_class {rule.traffic_class!r} is not one of the policy's classes"
            for index, rule in enumerate(self.match)
            if rule.traffic_class not in named
        )
        raise_faults(faults)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Every class of the model, `default` first."""
        return (DEFAULT_CLASS, *sorted(set(self.classes) - {DEFAULT_CLASS}))

    def of_class(self, name: str) -> ClassPolicy:
        """Return the settings of class `name`; the defaults if the policy has none."""
        return self.classes.get(name) or ClassPolicy()

    @property
    def slos(self) -> dict[str, Slo]:
        """The latency goals of every class that has some."""
        return {name: slo for name in self.class_names if (slo := self.slo_of(name)) is not None}

    def slo_of(self, name: str) -> Slo | None:
        """Return the latency goals of class `name`: its own, else the model's."""
        return self.of_class(name).slo or self.slo


@dataclass(frozen=True, slots=True, config=STRICT)
class VersionedPolicy:
    """A policy as it is stored: `version` is the ETag, `updated_at` Unix seconds."""

    version: int
    updated_at: float
    policy: Policy


def _crossed(k_min: int | None, k_max: int) -> str:
    return f"k_min {k_min} is above k_max {k_max}"
