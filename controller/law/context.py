"""The inputs of a tick besides evidence (`PoolContext`), and its result (`TickResult`)."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from specpilot.controller.estimation.switchback import BlockGain, Draw, Plan
from specpilot.controller.law.reason import Reason
from specpilot.policy.canary import Arm
from specpilot.policy.freeze import Hold
from specpilot.policy.gain import LogGain
from specpilot.policy.graphs import Graphs
from specpilot.policy.model_policy import ClassPolicy, Mode, Policy
from specpilot.policy.names import DEFAULT_CLASS, K_LIMIT
from specpilot.policy.schedule import ClassGuidance, FleetAcceptance, Guidance, KRange, Ranges, Schedule, k_at


@dataclass(frozen=True, slots=True)
class CanaryWindow:
    """A window of a canary: the plan, both policies, and which of them is in force."""

    plan: Plan
    present: Policy
    canary: Policy
    is_drawn: bool

    @property
    def arm(self) -> Arm:
        """The policy in force, as a name."""
        return Arm.CANARY if self.is_drawn else Arm.PRESENT

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self.canary if self.is_drawn else self.present


@dataclass(frozen=True, slots=True)
class PoolContext:
    """The facts of a pool, from the records of its engines.

    Attributes:
        k_max, static_k: the smallest of the engines that can speculate (`pools.pool_contexts`).
        max_num_seqs: the largest of all engines.
        in_force: the schedule published last, `None` before the first.
        policy: while a canary runs, the policy of the present window, converted by `choosing` (modes `off` and `advise`
            become pins).
        window: the present window of a canary; `None` without one.
        engines: the names of its engines that can speculate.
        hold: the kind of the freeze, `None` without one. During a freeze engines follow the schedule in force even in
            mode `advise`.
        graphs: the CUDA graphs of its engines; `None` if they have none, or do not all have the same.
        engines_version: the latest version that any engine applied, 0 for none; Redis may have lost this schedule.
    """

    model: str
    pool: str
    policy: Policy
    k_max: int
    static_k: int
    max_num_seqs: int
    in_force: Schedule | None
    window: CanaryWindow | None = None
    engines: tuple[str, ...] = ()
    hold: Hold | None = None
    graphs: Graphs | None = None
    engines_version: int = 0

    @property
    def arm(self) -> Arm:
        """The policy in force: the present one without a canary."""
        return Arm.PRESENT if self.window is None else self.window.arm

    @property
    def effective_static_k(self) -> int:
        """The policy's static K, else the engines' own; at most K_max."""
        k = self.static_k if self.policy.static_k is None else self.policy.static_k
        return max(0, min(k, self.k_max))

    def during(self, window: CanaryWindow) -> "PoolContext":
        """Return the context in the window of a canary."""
        return replace(self.choosing(window.policy), window=window)

    def choosing(self, policy: Policy) -> "PoolContext":
        """Return the context with `policy` in a form that guidance can express.

        So one schedule can contain the guidance of both policies of a canary. A policy with mode `off` or `advise`
        becomes one that pins every class to its static K.
        """
        context = replace(self, policy=policy)
        if policy.mode is Mode.ACT:
            return context
        k = context.effective_static_k
        classes = {name: ClassPolicy(weight=policy.of_class(name).weight, pin=k) for name in policy.class_names}
        return replace(self, policy=replace(policy, mode=Mode.ACT, classes=classes))

    @property
    def mode(self) -> Mode:
        """The mode of the policy in force, as the policy states it."""
        return self.policy.mode if self.window is None else self.window.policy.mode

    @property
    def operator_rows(self) -> Ranges:
        """One row with the effective static K, without bounds and pins."""
        return {DEFAULT_CLASS: (KRange(1, max(1, self.max_num_seqs), self.effective_static_k),)}

    @property
    def unsteered_k(self) -> int:
        """The K of engines without guidance: their own static K before the first schedule, then the effective one."""
        if self.in_force is None and not self.engines_version:
            return max(0, min(self.static_k, self.k_max))
        return self.effective_static_k

    @property
    def unsteered_rows(self) -> Ranges:
        """One row with `unsteered_k`."""
        return {DEFAULT_CLASS: (KRange(1, max(1, self.max_num_seqs), self.unsteered_k),)}

    def bounds(self, name: str) -> tuple[int, int]:
        """Return the smallest and largest K that class `name` may have; a pin makes them equal."""
        low, high = self._asked_bounds(name)
        high = max(0, min(high, self.k_max))
        return min(max(0, low), high), high

    def guidance(self) -> Guidance:
        """Return the guidance of `policy`. Each engine limits the bounds to its own K_max."""
        classes = {}
        for name in self.policy.class_names:
            class_policy = self.policy.of_class(name)
            low, high = self._asked_bounds(name)
            classes[name] = ClassGuidance(class_policy.weight, min(low, high), high, class_policy.itl_slo_ms)
        return Guidance(self.policy.objective, classes, self.policy.probe_ratio)

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
        proposed: the estimate of the K that engines choose by the policy.
        publish: the rows to publish, `None` for none. Mode `advise` publishes none, except the static K when engines
            hold a schedule that differs from it.
        draw: the engines in a drawn window of an experiment.
        is_own_choice: whether the engines' K is their own choice. In a pool of several engines, those in `draw` may
            differ from the rest.
        fleet: the acceptance that is published beside `guidance`, as a prior for the engines.
        guidance, drawn_guidance: as in `Schedule`: the guidance of engines that are not drawn, and of those that are.
            Without guidance, or until they can choose, engines follow `publish`.
        gain_ratio: the predicted throughput of `proposed` at the present load over that of the K in force, minus 1;
            `None` when unknown.
        evidence: the main inputs and predictions of the decision, ready for JSON.
        log_gains: the gain of adaptive K over the static K in each window of the control group that this tick compared.
        canary_gains: the gains of the canary in each block that this tick completed.
        baseline: the rows and the probe ratio that a freeze of the current K publishes: those that were in force when
            it began. If it began in a window of the control group or of a canary, they are those that apply outside of
            such windows. `None` without any.
    """

    reason: Reason
    proposed: Ranges
    publish: Ranges | None
    probe_ratio: float
    gain_ratio: float | None
    evidence: Mapping[str, Any]
    log_gains: tuple[LogGain, ...] = ()
    canary_gains: tuple[BlockGain, ...] = ()
    baseline: tuple[Ranges, float] | None = None
    guidance: Guidance | None = None
    fleet: FleetAcceptance | None = None
    drawn_guidance: Guidance | None = None
    draw: Draw = field(default_factory=Draw)
    is_own_choice: bool = False

    @property
    def applied(self) -> Ranges | None:
        """The rows in force: the published ones or, if engines choose, the estimate. `None`: nothing is published."""
        return self.proposed if self.is_own_choice else self.publish

    @property
    def decodes(self) -> int:
        """Running decodes at the tick, at least 1."""
        return max(1, round(float(self.evidence.get("decodes") or 1)))

    @property
    def has_lost(self) -> bool | None:
        """Whether the control group shows a loss, also if an SLO or a canary keeps the pool from the static K.

        `None` without this evidence.
        """
        state = self.evidence.get("control_group")
        return None if state is None else bool(state["has_lost"])

    def k(self, rows: Ranges | None) -> dict[str, int]:
        """Return K by row in `rows` (`proposed` or `publish`) at the load of the tick."""
        return {name: k_at(ranges, self.decodes) for name, ranges in (rows or {}).items()}
