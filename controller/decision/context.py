"""The inputs of a tick besides evidence (`PoolContext`), and its result (`TickResult`)."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from specpilot.controller.decision import latency_margin
from specpilot.controller.decision.reason import Reason
from specpilot.controller.estimation.switchback import BlockGain, Draw, Plan
from specpilot.policy.canary import Arm
from specpilot.policy.freeze import Freeze, Hold
from specpilot.policy.gain import LogGain
from specpilot.policy.latency_goal import Slo
from specpilot.policy.model_policy import Mode, Policy
from specpilot.policy.names import K_LIMIT
from specpilot.policy.schedule import Cause, ClassGuidance, FleetAcceptance, Guidance, Override, Schedule


@dataclass(frozen=True, slots=True)
class CanaryWindow:
    """A window of a canary: the plan, the canary's policy, and whether this policy is in force."""

    plan: Plan
    canary: Policy
    is_drawn: bool

    @property
    def arm(self) -> Arm:
        """The policy in force, as a name."""
        return Arm.CANARY if self.is_drawn else Arm.PRESENT


@dataclass(frozen=True, slots=True)
class PoolContext:
    """The facts of a pool, from the records of its engines.

    Attributes:
        k_max, static_k: the smallest of the engines that can speculate (`pools.pool_contexts`).
        in_force: the schedule published last, `None` before the first.
        policy: the model's own, also in a window of a canary.
        window: the present window of a canary; `None` without one.
        engines: the names of its engines that can speculate.
        freeze: the freeze in force, `None` without one.
        engines_version: the latest version that any engine applied, 0 for none; Redis may have lost this schedule.
        margins: by class the margin of its latency goal, 1 for a class without one (`latency_margin`).
    """

    model: str
    pool: str
    policy: Policy
    k_max: int
    static_k: int
    in_force: Schedule | None
    window: CanaryWindow | None = None
    engines: tuple[str, ...] = ()
    freeze: Freeze | None = None
    engines_version: int = 0
    margins: Mapping[str, float] = field(default_factory=dict)

    @property
    def effective_static_k(self) -> int:
        """The policy's static K, else the engines' own; at most K_max."""
        k = self.static_k if self.policy.static_k is None else self.policy.static_k
        return max(0, min(k, self.k_max))

    def with_margins(self) -> "PoolContext":
        """Return the context with the margins of latency goals in force."""
        guidance = self.in_force.guidance if self.in_force is not None else None
        return replace(self, margins=latency_margin.margins_of(guidance, self.policy.slos))

    @property
    def policy_in_force(self) -> Policy:
        """The canary's policy in its windows, else the model's own."""
        return self.window.canary if self.window is not None and self.window.is_drawn else self.policy

    def requirements(self, name: str) -> tuple[int, int, float, Slo | None]:
        """Return the requirements for class `name`: the smallest and largest K, weight, latency goals."""
        low, high = self._asked_bounds(name)
        high = max(0, min(high, self.k_max))
        return min(max(0, low), high), high, self.policy.of_class(name).weight, self.policy.slo_of(name)

    def guidance(self) -> Guidance:
        """Return the guidance of `policy`, with the override of its mode. Engines lower bounds to their own K_max."""
        policy, classes = self.policy, {}
        for name in policy.class_names:
            slo, (low, high) = policy.slo_of(name), self._asked_bounds(name)
            bound_ms = latency_margin.bound_ms(slo, self.margins.get(name, 1.0))
            classes[name] = ClassGuidance(policy.of_class(name).weight, min(low, high), high, bound_ms, slo)
        override = None
        if policy.mode is not Mode.ACT:
            override = Override(self.effective_static_k, Cause(policy.mode.value))
        return Guidance(policy.objective, classes, policy.probe_ratio, policy.static_k, override, policy.limit_running)

    def static_guidance(self, cause: Cause) -> Guidance:
        """Return the guidance of `policy` with the static K in force, for an experiment."""
        return replace(self.guidance(), override=Override(self.effective_static_k, cause))

    def frozen_guidance(self, freeze: Freeze) -> Guidance:
        """Return the guidance of `policy` during `freeze`.

        In mode `act` engines end the freeze by themselves; in another mode the static K must follow it.
        """
        k = self.effective_static_k if freeze.hold is Hold.STATIC else None
        until = freeze.until if self.policy.mode is Mode.ACT else None
        return replace(self.guidance(), override=Override(k, Cause.FROZEN, until))

    def _asked_bounds(self, name: str) -> tuple[int, int]:
        """Return the bounds on K of class `name` as the policy has them, for engines of any K_max."""
        class_policy = self.policy.of_class(name)
        if class_policy.pin is not None:
            return class_policy.pin, class_policy.pin
        low = self.policy.k_min if class_policy.k_min is None else class_policy.k_min
        high = self.policy.k_max if class_policy.k_max is None else class_policy.k_max
        return low, K_LIMIT if high is None else high


@dataclass(frozen=True, slots=True)
class TickResult:
    """The decision of one tick for one pool.

    Attributes:
        guidance, drawn_guidance: as in `Schedule`; without `guidance` nothing is published.
        draw: the engines in a drawn window of an experiment.
        fleet: the acceptance that is published beside `guidance`, as a prior for the engines.
        evidence: the main numbers of the decision, ready for JSON.
        log_gains: the gain of adaptive K over the static K in each window of the control group that this tick compared.
        canary_gains: the gains of the canary in each block that this tick completed.
    """

    reason: Reason
    guidance: Guidance | None
    evidence: Mapping[str, Any]
    drawn_guidance: Guidance | None = None
    draw: Draw = field(default_factory=Draw)
    fleet: FleetAcceptance | None = None
    log_gains: tuple[LogGain, ...] = ()
    canary_gains: tuple[BlockGain, ...] = ()

    @property
    def k(self) -> dict[str, float]:
        """Return the measured mean K by class; empty if it is not known."""
        classes: Mapping[str, Mapping[str, Any]] = self.evidence.get("classes", {})
        return {name: facts["k"] for name, facts in classes.items()}

    @property
    def has_lost(self) -> bool | None:
        """Whether the control group shows a loss, also if an SLO or a canary keeps the pool from the static K.

        `None` without this evidence.
        """
        state = self.evidence.get("control_group")
        return None if state is None else bool(state["has_lost"])
