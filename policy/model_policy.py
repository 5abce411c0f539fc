"""The policy of one model, which operators write through the admin API: mode, objective, bounds, classes and rules.

All values are frozen and checked at creation. `__post_init__` collects every fault of an object before it raises, so
that an operator sees all of them at once.
"""

import math
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from enum import StrEnum
from typing import ClassVar

from specpilot.policy.latency_goal import LEAST_MS, MOST_MS, Slo, Statistic
from specpilot.policy.names import (
    CLASS_LIMIT,
    DEFAULT_CLASS,
    K_LIMIT,
    STRICT,
    class_name_faults,
    model_name_faults,
    raise_faults,
    range_faults,
)
from specpilot.policy.schedule import WEIGHT_LIMIT, Objective

PRIORITY_LIMIT = 1000
"""A bound on a class's priority, both ways; it only catches typing errors."""

RULE_LIMIT = 256
"""Match rules of a policy at most; it bounds the size of its history."""

PATH_LIMIT = 256
"""Characters of a match rule's path at most."""


class Mode(StrEnum):
    """The scope of the controller for one model."""

    OFF = "off"  # publish the static K
    ADVISE = "advise"  # the same, to compare it with what engines would choose
    ACT = "act"  # publish guidance, by which engines choose K


@dataclass(frozen=True, slots=True)
class ClassPolicy:
    """The settings of an operator for one traffic class of one model.

    `weight` scales the class's tokens in the objective, and its share of the places that become free while requests
    wait in a gateway. Among waiting requests a higher `priority` always goes first. `k_min` and `k_max` bound K; `None`
    keeps the model's bound. `pin` fixes K, also outside the model's bounds. `slo` are the class's latency goals; `None`
    keeps the model's. `itl_slo_ms` is the former name of `slo.tpot_ms.mean`: read, never written.
    """

    __pydantic_config__: ClassVar = STRICT
    weight: float = 1.0
    k_min: int | None = None
    k_max: int | None = None
    pin: int | None = None
    slo: Slo | None = None
    priority: int = 0
    itl_slo_ms: InitVar[float | None] = None

    def __post_init__(self, itl_slo_ms: float | None) -> None:
        faults = range_faults(-PRIORITY_LIMIT, PRIORITY_LIMIT, priority=self.priority)
        if not 0 < self.weight <= WEIGHT_LIMIT:
            faults.append(f"weight is {self.weight}; it must be above 0 and at most {WEIGHT_LIMIT}")
        faults += range_faults(0, K_LIMIT, k_min=self.k_min, k_max=self.k_max, pin=self.pin)
        if self.k_min is not None and self.k_max is not None and self.k_min > self.k_max:
            faults.append(f"k_min {self.k_min} is above k_max {self.k_max}")
        if self.pin is not None and self.k_min is not None and self.pin < self.k_min:
            faults.append(f"pin {self.pin} is below the class's own k_min {self.k_min}; remove one of the two")
        if self.pin is not None and self.k_max is not None and self.pin > self.k_max:
            faults.append(f"pin {self.pin} is above the class's own k_max {self.k_max}; remove one of the two")
        faults += self._former_faults(itl_slo_ms)
        raise_faults(faults)
        if itl_slo_ms is not None:
            ms = min(
                max(itl_slo_ms, LEAST_MS), MOST_MS
            )  # it had no such bounds, and stored policies must stay readable
            object.__setattr__(self, "slo", Slo(tpot_ms={Statistic.MEAN: ms}))

    def _former_faults(self, itl_slo_ms: float | None) -> list[str]:
        if itl_slo_ms is None:
            return []
        if self.slo is not None:
            return ["itl_slo_ms is the former name of slo.tpot_ms.mean; give only slo"]
        return [] if 0 < itl_slo_ms < math.inf else [f"itl_slo_ms is {itl_slo_ms}; it must be above 0 and finite"]


@dataclass(frozen=True, slots=True)
class MatchRule:
    """Gives `traffic_class` to a request that meets every stated condition. The first rule that matches wins.

    `path` is the request path; `stream` whether the request streams; `has_tools` and `has_response_format` whether the
    body names tools or a response format; `max_tokens_at_most` and `prompt_chars_at_least` bound the sizes.
    """

    __pydantic_config__: ClassVar = STRICT
    traffic_class: str
    path: str | None = None
    stream: bool | None = None
    has_tools: bool | None = None
    has_response_format: bool | None = None
    max_tokens_at_most: int | None = None
    prompt_chars_at_least: int | None = None

    def __post_init__(self) -> None:
        faults = class_name_faults(f"traffic_class {self.traffic_class!r}", self.traffic_class)
        if self.path is not None and len(self.path) > PATH_LIMIT:
            faults.append(f"path has {len(self.path)} characters; at most {PATH_LIMIT}")
        raise_faults(faults)


@dataclass(frozen=True, slots=True)
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

    __pydantic_config__: ClassVar = STRICT
    model: str
    mode: Mode = Mode.ACT
    objective: Objective = Objective.THROUGHPUT
    static_k: int | None = None
    k_min: int = 0
    k_max: int | None = None
    probe_ratio: float = 0.005
    control_group_ratio: float = 0.01
    slo: Slo | None = None
    limit_running: bool = False
    classes: Mapping[str, ClassPolicy] = field(default_factory=dict)
    match: tuple[MatchRule, ...] = ()

    def __post_init__(self) -> None:
        faults = model_name_faults("model", self.model)
        faults += range_faults(0, K_LIMIT, static_k=self.static_k, k_min=self.k_min, k_max=self.k_max)
        if self.k_max is not None and self.k_min > self.k_max:
            faults.append(f"k_min {self.k_min} is above k_max {self.k_max}")
        faults += range_faults(0, 0.5, probe_ratio=self.probe_ratio, control_group_ratio=self.control_group_ratio)
        named = set(self.classes) | {DEFAULT_CLASS}
        if len(named) > CLASS_LIMIT:
            faults.append(f"classes names {len(named)} classes, default included; at most {CLASS_LIMIT}")
        faults.extend(fault for name in self.classes for fault in class_name_faults(f"classes.{name}", name))
        if len(self.match) > RULE_LIMIT:
            faults.append(f"match has {len(self.match)} rules; at most {RULE_LIMIT}")
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


@dataclass(frozen=True, slots=True)
class VersionedPolicy:
    """A policy as it is stored: `version` is the ETag, `updated_at` Unix seconds."""

    version: int
    updated_at: float
    policy: Policy
