"""Computes the result of one tick of one pool from the estimates. `reason` has the table of possible results.

Engines choose K themselves, by the guidance that the controller publishes. Guidance does not depend on the traffic:
when traffic changes, engines follow by themselves (`engine_adapter.plan.planner`, "When traffic changes"). The
controller estimates this choice from the prices and counts that engines export (`estimate`): for `explain`, for
forecasts, and for a freeze of the current K. It decides which engines are drawn for the control group or a canary, and
whether the pool falls back to the static K.

Bounds and pins apply to the guidance and to the static K of the control group. They do not apply to K that an operator
sets directly: the static K of modes `off` and `advise`, and of `freeze --hold static`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from specpilot.controller.estimation.acceptance import ModelAcceptance
from specpilot.controller.estimation.observation import Evidence
from specpilot.controller.estimation.switchback import BlockGain, Draw, UnitState
from specpilot.controller.law.context import PoolContext, TickResult
from specpilot.controller.law.control_group import Comparison
from specpilot.controller.law.estimate import Estimate, mean_running, representative, shares
from specpilot.controller.law.pool_memory import PoolMemory
from specpilot.controller.law.reason import Reason
from specpilot.controller.law.rows import bounds_of, requirements, static_rows, within
from specpilot.policy.freeze import Hold
from specpilot.policy.gain import LogGain
from specpilot.policy.model_policy import Mode
from specpilot.policy.schedule import Guidance, Ranges, Schedule

_SIGNIFICANT_DIGITS = 6


class _Ways(NamedTuple):
    """The guidance of an experiment's usual and alternative way; `None` is the static K."""

    usual: Guidance | None
    alternative: Guidance | None


class Tick:
    """The state of one tick for one pool. It is used for one call of `result`."""

    def __init__(self, context: PoolContext, pool: PoolMemory, model: ModelAcceptance, now: float, at: float) -> None:
        self._context = context
        self._policy = context.policy
        self._pool = pool
        self._model = model
        self._now = now
        self._at = at
        self._weights = {name: self._policy.of_class(name).weight for name in self._policy.class_names}
        self._static = static_rows(self._present)
        self._mixes = pool.fresh_mixes(now)
        self._log_gains: list[LogGain] = []
        self._canary_gains: list[BlockGain] = []
        self._evidence: dict[str, Any] = pool.ages(now)

    @property
    def _present(self) -> PoolContext:
        """The context with the present policy, also in a canary's window."""
        context = self._context
        return context if context.window is None else context.choosing(context.window.present)

    def result(self) -> TickResult:
        """Return the decision and its reason."""
        context, pool, mode = self._context, self._pool, self._policy.mode
        operator_rows = context.operator_rows
        if context.k_max == 0:
            self._set_baseline(None)
            is_steered = mode is not Mode.ADVISE or context.hold is not None
            return self._answer(Reason.NO_DRAFTER, operator_rows, operator_rows if is_steered else None)
        self._measure_experiments()
        reason = self._unknown_reason()
        self._describe(is_known=reason not in (Reason.STALE, Reason.IDLE))
        estimate = None if reason is not None else self._estimate()
        if estimate is not None:
            pool.chosen = estimate.rows()
        chosen = within(pool.chosen or self._static, bounds_of(context))
        gain = None if estimate is None else self._predict(estimate, chosen)
        self._set_baseline(None if pool.chosen is None else chosen)
        if mode is Mode.OFF:
            return self._answer(Reason.OFF, chosen, operator_rows, gain)
        if mode is Mode.ADVISE:
            return self._answer(reason or Reason.ADAPTIVE, chosen, self._withdrawal(operator_rows), gain)
        return self._guided(reason, chosen, estimate, gain)

    def _unknown_reason(self) -> Reason | None:
        """Return the reason for which the present load is unknown; `None` if it is known."""
        if self._pool.is_stale(self._now):
            return Reason.STALE
        if self._pool.is_idle:
            return Reason.IDLE
        return Reason.UNPRICED if representative(self._mixes) is None else None

    def _estimate(self) -> Estimate | None:
        mix = representative(self._mixes)
        return None if mix is None else Estimate(self._context, mix, self._model.lengths(self._context.k_max))

    def _guided(
        self, unknown: Reason | None, chosen: Ranges, estimate: Estimate | None, gain: float | None
    ) -> TickResult:
        """Return the result for mode `act`.

        Engines choose K, except those in a window of the control group; in a pool that has fallen back, only those do.
        """
        pool, policy, context = self._pool, self._policy, self._context
        breaks_slo = estimate is not None and estimate.keeps_slos(chosen) and not estimate.keeps_slos(self._static)
        has_fallen_back = self._has_lost and not breaks_slo
        ways = self._ways(has_fallen_back=has_fallen_back)
        draw = Draw()
        if context.window is not None:
            draw = self._canary_draw()
        elif unknown is None and not breaks_slo:
            draw = pool.control_group.draw(pool.engines, self._at, policy.control_group_ratio)
        all_are_drawn = bool(draw.engines) and pool.engines.keys() <= set(draw.engines)
        is_static = (ways.alternative if all_are_drawn else ways.usual) is None
        known = (Reason.STATIC_BETTER if has_fallen_back else Reason.CONTROL_GROUP) if is_static else Reason.ADAPTIVE
        known = Reason.OFF if context.mode is Mode.OFF else known
        is_known = has_fallen_back or pool.chosen is not None
        pool.baseline = (self._static if has_fallen_back else chosen, policy.probe_ratio) if is_known else None
        return self._answer(
            unknown or known, chosen, self._static, gain,
            probe_ratio=self._present.policy.probe_ratio,
            guidance=ways.usual,
            drawn_guidance=ways.alternative,
            draw=draw,
            fleet=self._model.shared(),
            is_own_choice=not is_static and unknown is not Reason.UNPRICED and pool.chosen is not None,
        )  # fmt: skip

    def _ways(self, *, has_fallen_back: bool) -> _Ways:
        """Return the ways of the running experiment; `has_fallen_back`: the pool has fallen back."""
        window, adaptive = self._context.window, self._present.guidance()
        canary = None if window is None else self._context.choosing(window.canary).guidance()
        return _Ways(None, canary or adaptive) if has_fallen_back else _Ways(adaptive, canary)

    def _canary_draw(self) -> Draw:
        """Return all engines of the pool if the canary's window is drawn."""
        window, engines = self._context.window, {*self._context.engines, *self._pool.engines}
        if window is None or not window.is_drawn or not engines:
            return Draw()
        return Draw(tuple(sorted(engines)), window.plan.window_end(self._at))

    @property
    def _followed(self) -> Schedule | None:
        """Return the schedule in force in mode `act` or under a freeze, else `None`: engines run the static K."""
        is_steered = self._policy.mode is Mode.ACT or self._context.hold is not None
        return self._context.in_force if is_steered else None

    def _in_force(self, chosen: Ranges) -> Ranges:
        """Return the engines' K: the estimate of their choice if any of them chooses, else the rows in force."""
        followed, context = self._followed, self._context
        if followed is None:
            return context.unsteered_rows
        chooses = any(followed.guidance_of(engine) is not None for engine in self._pool.engines)
        return chosen if chooses else followed.classes

    def _set_baseline(self, chosen: Ranges | None) -> None:
        """Set the baseline of a freeze of the current K: rows with their probe ratio. Without such a freeze, drop it.

        A baseline that exists is kept. Otherwise it becomes the rows in force. If engines choose K, it becomes the
        estimate `chosen`, as soon as there is one.
        """
        pool, in_force = self._pool, self._context.in_force
        if self._context.hold is not Hold.CURRENT:
            pool.baseline = None
        elif pool.baseline is None and in_force is not None:
            if in_force.guidance is None or in_force.guidance.is_pinned:  # pinned to the rows
                pool.baseline = in_force.classes, in_force.probe_ratio
            elif chosen is not None:
                pool.baseline = chosen, self._policy.probe_ratio

    @property
    def _has_lost(self) -> bool:
        """Return whether the control group shows a loss, so that engines choose K only in drawn windows."""
        return self._present.policy.control_group_ratio > 0 and self._pool.control_group.has_lost

    def _withdrawal(self, static: Ranges) -> Ranges | None:
        """Return the static rows if engines hold a schedule that differs from them, else `None`.

        Without this they would go on with that schedule. Redis may have lost it, but engines report its version.
        """
        context, in_force = self._context, self._context.in_force
        if context.hold is not None:
            return None
        if in_force is None:
            return static if context.engines_version else None
        is_fixed = in_force.guidance is None and in_force.drawn_guidance is None
        return None if is_fixed and in_force.classes == static else static

    def _measure_experiments(self) -> None:
        """Add this tick to the running experiment: a canary, or else the control group."""
        context, pool, group = self._context, self._pool, self._pool.control_group
        window, in_force = context.window, context.in_force
        present = context if window is None else replace(context, policy=window.present)
        policy = present.policy
        required = tuple(requirements(present, name) for name in policy.class_names)
        weights = {name: policy.of_class(name).weight for name in policy.class_names}
        group.set_comparison(Comparison(present.effective_static_k, policy.objective, weights, required))
        if window is None:
            pool.canary.pause()
            if policy.control_group_ratio <= 0:
                group.reset()
        if window is not None or policy.mode is not Mode.ACT:
            group.pause()
        if in_force is None:
            return
        drawn, ran, ahead_s = self._drawn(in_force), self._ran(in_force), self._at - self._now
        if window is not None:
            newest = pool.newest
            units = {} if newest is None else {context.pool: UnitState(newest, newest.at + ahead_s, ran[bool(drawn)])}
            self._canary_gains = pool.canary.add_tick(window.plan, units, self._at)
        elif policy.mode is Mode.ACT and policy.control_group_ratio > 0:
            units = {
                name: UnitState(snapshot, snapshot.at + ahead_s, ran[name in drawn])
                for name, snapshot in pool.engines.items()
            }
            self._log_gains = group.add_tick(units, self._at, policy.control_group_ratio)

    def _drawn(self, in_force: Schedule) -> frozenset[str]:
        """Return the engines that are in a window by the schedule in force.

        An engine ends its window by itself, also if no new schedule was published.
        """
        is_over = in_force.drawn_until is not None and self._at > in_force.drawn_until
        return frozenset() if is_over else frozenset(in_force.drawn)

    def _ran(self, in_force: Schedule) -> Mapping[bool, bool | None]:
        """Return which way ran by the schedule in force.

        Keys: `True` for the engines that the schedule draws, `False` for the others. Values, as `UnitState.is_drawn`:
        `True` for the alternative way, `False` for the usual way, `None` if it is not certain that either ran.

        Two cases need care. During a canary in a pool that has fallen back, the schedule in force may have guidance for
        engines that are not drawn. Then the fall back was suspended, because the static K would break an SLO, and the
        usual way is adaptive K. During a canary in a pool that is `unpriced`, engines run rows in all windows,
        so both values are `None`; a control group draws no window in such a pool.
        """
        is_canary = self._context.window is not None
        has_fallen_back = self._has_lost and not (is_canary and in_force.guidance is not None)
        is_certain = self._at <= in_force.issued_at + in_force.valid_for_s
        is_certain &= not (is_canary and self._unknown_reason() is Reason.UNPRICED)
        ways, ran = self._ways(has_fallen_back=has_fallen_back), {}
        for is_drawn, guidance, way in (
            (False, in_force.guidance, ways.usual),
            (True, in_force.drawn_guidance, ways.alternative),
        ):
            is_way = guidance == way and (guidance is not None or in_force.classes == self._static)
            ran[is_drawn] = is_drawn if is_way and is_certain else None
        return ran

    def _describe(self, *, is_known: bool) -> None:
        """Put the load and the acceptance into the evidence; nothing if the load is not known."""
        if not is_known:
            return
        evidence = self._pool.newest.evidence if self._pool.newest else Evidence()
        classes: dict[str, dict[str, Any]] = {}
        bands = self._model.described(self._context.k_max)
        for (name, band), share in shares(self._mixes).items():
            described = classes.setdefault(name, {"share": 0.0, "measured_length": None})
            described["share"] += share
            if band < len(bands):
                bands[band]["share"] = bands[band].get("share", 0.0) + share
        for name, described in classes.items():
            drafts = sum(count for (owner, _), count in evidence.drafts_of.items() if owner == name)
            tokens = sum(count for (owner, _), count in evidence.decode_tokens.items() if owner == name)
            described["measured_length"] = tokens / drafts if drafts else None
        self._evidence |= {
            "decodes": mean_running(self._mixes),
            "drafts": sum(evidence.drafts.values()),
            "steps": evidence.steps,
            "classes": classes,
            "bands": {str(band): described for band, described in enumerate(bands) if described},
        }

    def _predict(self, estimate: Estimate, chosen: Ranges) -> float:
        """Return the predicted gain of the engines' choice over the K in force (`TickResult.gain_ratio`).

        Put the predicted throughputs and the predicted step into the evidence, beside the measured ones.
        """
        snapshot = self._pool.newest
        rows = {"in_force": self._in_force(chosen), "best": chosen, "static": static_rows(self._context)}
        predicted = {name: estimate.throughput(table) for name, table in rows.items()}
        self._evidence["throughput"] = {
            **{f"predicted_{name}": throughput for name, (throughput, _) in predicted.items()},
            "measured": snapshot.weighted_throughput(self._weights) if snapshot else None,
        }
        self._evidence["step_s"] = {
            "predicted": predicted["in_force"][1],
            "measured": snapshot.step_s if snapshot else None,
        }
        return predicted["best"][0] / predicted["in_force"][0] - 1

    def _answer(
        self, reason: Reason, proposed: Ranges, publish: Ranges | None, gain: float | None = None, **guiding: Any
    ) -> TickResult:
        """Return the result; `guiding` are the further fields of a result with guidance."""
        if self._policy.control_group_ratio > 0 or self._context.window is not None:
            description = self._pool.control_group.described()
            is_paused = self._policy.mode is not Mode.ACT or self._context.window is not None
            self._evidence["control_group"] = {**description, "is_paused": is_paused}
        return TickResult(
            reason=reason,
            proposed=proposed,
            publish=publish,
            gain_ratio=gain,
            evidence=_rounded(self._evidence),
            log_gains=tuple(self._log_gains),
            canary_gains=tuple(self._canary_gains),
            baseline=self._pool.baseline if self._context.hold is Hold.CURRENT else None,
            **{"probe_ratio": 0.0, **guiding},
        )


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_SIGNIFICANT_DIGITS}g}")
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return value
