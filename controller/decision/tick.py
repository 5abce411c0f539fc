"""Computes the result of one tick of one pool. `reason` has the table of possible results.

Engines choose K themselves, by the guidance that the controller publishes. Guidance does not depend on the traffic:
when traffic changes, engines follow by themselves (`engine_adapter.plan.planner`, "When traffic changes"). The
controller measures acceptance, load and gain. It decides which engines are drawn for the control group or a canary, and
whether the pool falls back to the static K.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from specpilot.controller.decision.context import PoolContext, TickResult
from specpilot.controller.decision.control_group import Comparison
from specpilot.controller.decision.pool_memory import STALE_S, PoolMemory
from specpilot.controller.decision.reason import Reason
from specpilot.controller.estimation.acceptance import ModelAcceptance
from specpilot.controller.estimation.observation import Evidence
from specpilot.controller.estimation.switchback import BlockGain, Draw, UnitState
from specpilot.policy.gain import LogGain
from specpilot.policy.model_policy import Mode
from specpilot.policy.schedule import Cause, Guidance, Schedule

_SIGNIFICANT_DIGITS = 6


class _Settings(NamedTuple):
    """The guidance of an experiment's usual and alternative setting."""

    usual: Guidance
    alternative: Guidance


class Tick:
    """The state of one tick for one pool. It is used for one call of `result`."""

    def __init__(self, context: PoolContext, pool: PoolMemory, model: ModelAcceptance, now: float, at: float) -> None:
        self._context = context.with_margins()  # those in force until now
        self._policy = context.policy
        self._pool = pool
        self._model = model
        self._now = now
        self._at = at
        self._log_gains: list[LogGain] = []
        self._canary_gains: list[BlockGain] = []
        self._evidence: dict[str, Any] = pool.ages(now)

    def result(self) -> TickResult:
        """Return the decision and its reason."""
        context, mode = self._context, self._policy.mode
        if context.k_max == 0:
            return self._answer(Reason.NO_DRAFTER, None)
        self._measure_experiments()
        reason = self._unknown_reason()
        if reason is None:
            self._describe()
        self._follow_goals(is_known=reason is None)
        context = self._context
        if context.freeze is not None:
            return self._answer(Reason.FROZEN, context.frozen_guidance(context.freeze))
        if mode is not Mode.ACT and context.window is None:
            return self._answer(Reason(mode.value), context.guidance())
        return self._guided(reason)

    def _unknown_reason(self) -> Reason | None:
        """Return the reason for which the present load is unknown; `None` if it is known."""
        if self._pool.is_stale(self._now):
            return Reason.STALE
        return Reason.IDLE if self._pool.is_idle else None

    def _guided(self, unknown: Reason | None) -> TickResult:
        """Return the result for mode `act`, and for a canary.

        Engines choose K, except those in a window of the control group; in a pool that has fallen back, only those do.
        """
        pool, context = self._pool, self._context
        breaks_slo = pool.breaks_slo(self._now)
        has_fallen_back = self._has_lost and not breaks_slo
        settings = self._settings(has_fallen_back=has_fallen_back)
        draw = Draw()
        if context.window is not None:
            draw = self._canary_draw()
        elif unknown is None and not breaks_slo:
            draw = pool.control_group.draw(pool.engines, self._at, self._policy.control_group_ratio)
        all_are_drawn = bool(draw.engines) and pool.engines.keys() <= set(draw.engines)
        override = (settings.alternative if all_are_drawn else settings.usual).override
        return self._answer(
            unknown or (Reason.ADAPTIVE if override is None else Reason(override.cause.value)),
            settings.usual,
            drawn_guidance=settings.alternative,
            draw=draw,
        )

    def _settings(self, *, has_fallen_back: bool) -> _Settings:
        """Return the settings of the running experiment; `has_fallen_back`: the pool has fallen back."""
        context, window = self._context, self._context.window
        adaptive = context.guidance()
        usual = context.static_guidance(Cause.FALLEN_BACK) if has_fallen_back else adaptive
        if window is not None:
            # With margins as after a promotion: those of other goals begin at 1.
            return _Settings(usual, replace(context, policy=window.canary).with_margins().guidance())
        return _Settings(usual, adaptive if has_fallen_back else context.static_guidance(Cause.CONTROL_GROUP))

    def _canary_draw(self) -> Draw:
        """Return all engines of the pool, if the present window of the canary is drawn."""
        window = self._context.window
        if window is None or not window.is_drawn:
            return Draw()
        return Draw(tuple(sorted(self._context.engines)), window.plan.window_end(self._at))

    @property
    def _has_lost(self) -> bool:
        """Return whether the control group shows a loss, so that engines choose K only in drawn windows."""
        return self._policy.control_group_ratio > 0 and self._pool.control_group.has_lost

    @property
    def _is_measured(self) -> bool:
        """Whether the control group is measured now."""
        context = self._context
        return context.window is None and context.freeze is None and self._policy.mode is Mode.ACT

    def _measure_experiments(self) -> None:
        """Add this tick to the running experiment: a canary, or else the control group."""
        context, pool, group = self._context, self._pool, self._pool.control_group
        window, in_force, policy = context.window, context.in_force, self._policy
        required = tuple(context.requirements(name) for name in policy.class_names)
        weights = {name: policy.of_class(name).weight for name in policy.class_names}
        group.set_comparison(Comparison(context.effective_static_k, policy.objective, weights, required))
        if window is None:
            pool.canary.pause()
            if policy.control_group_ratio <= 0:
                group.reset()
        if not self._is_measured:
            group.pause()
        if in_force is None:
            return
        drawn, ran, ahead_s = self._drawn(in_force), self._ran(in_force), self._at - self._now
        if window is not None:
            newest = pool.newest
            units = {} if newest is None else {context.pool: UnitState(newest, newest.at + ahead_s, ran[bool(drawn)])}
            self._canary_gains = pool.canary.add_tick(window.plan, units, self._at)
        elif self._is_measured and policy.control_group_ratio > 0:
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
        """Return which setting ran by the schedule in force.

        Keys: `True` for the engines that the schedule draws, `False` for the others. Values, as `UnitState.is_drawn`:
        `True` for the alternative setting, `False` for the usual setting, `None` if it is not certain that either ran.

        During a canary in a pool that has fallen back the fall back may be suspended, because the static K would break
        an SLO. Then the usual setting is adaptive K.
        """
        is_suspended = self._context.window is not None and not in_force.is_fallen_back
        settings = self._settings(has_fallen_back=self._has_lost and not is_suspended)
        return {
            False: False if in_force.guidance == settings.usual else None,
            True: True if in_force.drawn_guidance == settings.alternative else None,
        }

    def _follow_goals(self, *, is_known: bool) -> None:
        """Move the margins of latency goals, if engines choose K, and put the goals into the evidence."""
        context, pool, slos = self._context, self._pool, self._policy.slos
        pool.goals.keep(slos, pool.engines)
        if not slos:
            return
        has_fallen_back = self._has_lost and not pool.breaks_slo(self._now)
        is_chosen = is_known and self._is_measured and not has_fallen_back
        if (in_force := context.in_force) is not None:
            drawn = self._drawn(in_force)
            for name, snapshot in pool.engines.items():
                guidance = (in_force.drawn_guidance if name in drawn else None) or in_force.guidance
                pool.goals.add(name, snapshot, guidance, is_chosen=is_chosen)
        if is_chosen:
            fresh = {name: item.evidence for name, item in pool.engines.items() if self._now - item.at <= STALE_S}
            self._context = replace(context, margins=pool.goals.margins(context.margins, fresh))
        self._evidence["slo"] = pool.goals.described(self._now, self._context.margins)

    def _describe(self) -> None:
        """Put the measured load, K, acceptance and throughput into the evidence."""
        snapshot = self._pool.newest
        evidence = snapshot.evidence if snapshot else Evidence()
        decodes = sum(evidence.drafts.values())
        classes: dict[str, dict[str, Any]] = {}
        bands = self._model.described(self._context.k_max)
        for (name, band, k), count in sorted(evidence.drafts.items()):
            for facts in (classes.setdefault(name, {}), bands[band] if band < len(bands) else {}):
                facts["share"] = facts.get("share", 0.0) + count / decodes
                facts["k"] = facts.get("k", 0.0) + count * k / decodes
        for facts in (*classes.values(), *bands):
            if facts.get("share"):
                facts["k"] /= facts["share"]
        for name, facts in classes.items():
            tokens = sum(count for (owner, _), count in evidence.decode_tokens.items() if owner == name)
            facts["measured_length"] = tokens / (facts["share"] * decodes)
        policy = self._context.policy_in_force
        weights = {name: policy.of_class(name).weight for name in policy.class_names}
        self._evidence |= {
            "decodes": decodes / evidence.decode_steps if evidence.decode_steps else None,
            "drafts": decodes,
            "steps": evidence.steps,
            "classes": classes,
            "bands": {str(band): facts for band, facts in enumerate(bands) if facts},
            "throughput": snapshot.weighted_throughput(weights) if snapshot else None,
            "step_s": snapshot.step_s if snapshot else None,
        }

    def _answer(self, reason: Reason, guidance: Guidance | None, **guiding: Any) -> TickResult:
        """Return the result; `guiding` are the further fields of a result with an experiment."""
        if self._policy.control_group_ratio > 0 or self._context.window is not None:
            description = self._pool.control_group.described()
            self._evidence["control_group"] = {**description, "is_paused": not self._is_measured}
        return TickResult(
            reason=reason,
            guidance=guidance,
            evidence=_rounded(self._evidence),
            fleet=None if guidance is None else self._model.shared(),
            log_gains=tuple(self._log_gains),
            canary_gains=tuple(self._canary_gains),
            **guiding,
        )


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_SIGNIFICANT_DIGITS}g}")
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return value
