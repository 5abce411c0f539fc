"""One tick of one pool: from the estimates to a result. `reason` has the table of its possible results.

The law starts from the table in force. If that table is not its own (in a window of the control group, in mode
`advise`, or because the engines choose K by guidance), it starts from its last choice. Bounds and pins apply to every
table of the law and to the static K of the control group. They do not apply to K that an operator sets directly: the
static K of mode `off` and of the withdrawal in `advise`, and the schedule of a freeze. Before the first schedule the
static K counts as in force.

Trials. Costs measured only without the drafter do not determine the cost with it, nor the reverse. From costs at
another load the cost is only extrapolated. So one engine of the pool, the one whose running decodes are closest to the
mean, tries a depth for `trial_steps` steps: a depth without any measurement; or one that was not measured at this load
and whose predicted score is close to the best one's. Trials run only in mode `act`, within bounds and pins of the
running classes, if no SLO is predicted to break, and not twice in `trial_rest_s`.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specpilot.controller.estimation.acceptance import ModelAcceptance
from specpilot.controller.estimation.graph_shape import cliffs
from specpilot.controller.estimation.pool_cost import is_near
from specpilot.controller.estimation.window_sums import WindowSums
from specpilot.controller.law.choice import Choice, Yield
from specpilot.controller.law.context import PoolContext, TickResult
from specpilot.controller.law.estimate import Estimate, representative
from specpilot.controller.law.hold_out import Comparison, Seen
from specpilot.controller.law.k_table import KTable, Ranges, grid
from specpilot.controller.law.pool_memory import PoolMemory, RunningTrial
from specpilot.controller.law.reason import Reason
from specpilot.controller.law.rows import Rows, requirements
from specpilot.controller.tuning import Tuning
from specpilot.policy.bands import row_parts
from specpilot.policy.canary import Arm
from specpilot.policy.freeze import Hold
from specpilot.policy.gain import LogGain
from specpilot.policy.types import DEFAULT_CLASS, Law, Mode, Schedule, Trial

Vector = NDArray[np.float64]
_UNKNOWN = (Reason.STALE, Reason.IDLE, Reason.COST_UNKNOWN)
"""Nothing can be said of the present load."""
_SIGNIFICANT_DIGITS = 6


class Tick:
    """The state of one tick for one pool. It is used for one call of `result`."""

    def __init__(  # noqa: PLR0913, PLR0917 - what a tick depends on
        self, context: PoolContext, pool: PoolMemory, model: ModelAcceptance, tuning: Tuning, now: float, at: float
    ) -> None:
        self._context = context
        self._policy = context.policy
        self._pool = pool
        self._model = model
        self._tuning = tuning
        self._now = now
        self._at = at
        self._rows = Rows.of(context)
        pool.cost.use(context.graphs)
        pool.is_by_engine = self._policy.law is Law.ENGINE
        self._snapshot = pool.snapshot()
        steep = cliffs(context.graphs, context.k_max) if context.graphs is not None else ()
        self._n = grid(max(1, context.max_num_seqs), steep)
        self._weights = {name: self._policy.of_class(name).weight for name in self._policy.class_names}
        self._choice: Choice | None = None
        self._estimated: Estimate | None = None
        self._log_gains: list[LogGain] = []
        self._evidence: dict[str, Any] = pool.ages(now)

    def result(self) -> TickResult:
        """Return the decision and its reason."""
        context, pool, mode = self._context, self._pool, self._policy.mode
        static = KTable.uniform((DEFAULT_CLASS,), self._n, context.fallback_k)
        if context.k_max == 0:
            self._set_standing(None)
            is_steered = mode is not Mode.ADVISE or context.hold is not None
            return self._answer(Reason.NO_DRAFTER, static, static.to_ranges() if is_steered else None, None)
        static_rows = self._bounded_static().to_ranges()
        is_static_in_force = mode is Mode.ACT and self._is_in_force(static_rows)
        self._measure_hold_out(is_static_in_force=is_static_in_force)
        # The table to go on from: the law's last choice while another's is in force, else the one in force.
        last = self._last_choice()
        is_others = is_static_in_force or self._followed is None or self._is_guided
        before = last if last is not None and is_others else self._in_place()
        if last is not None and not last.same_as(before):  # it was not published: no dwell time
            pool.changed_at = -math.inf
        inside = before.clipped(self._rows.low, self._rows.high)
        decide = self._estimate if self._policy.law is Law.ENGINE else self._decide
        chosen, decided, gain = decide(inside)
        is_moved = not inside.same_as(before) and decided is not Reason.GAIN
        reason = Reason.BOUNDS if is_moved else decided
        pool.chosen = chosen
        self._set_standing(chosen)
        if mode is Mode.OFF:
            return self._answer(Reason.OFF, chosen, static.to_ranges(), gain)
        if mode is Mode.ADVISE:
            return self._answer(reason, chosen, self._withdrawal(static), gain)
        breaks_slo = self._breaks_slo(self._uniform(context.fallback_k), chosen)
        if self._policy.law is Law.ENGINE:
            return self._guided(reason, chosen, static_rows, gain, breaks_slo=breaks_slo)
        static_reason = self._static_reason(
            reason, decided, is_static_in_force=is_static_in_force, breaks_slo=breaks_slo
        )
        publish = chosen.to_ranges() if static_reason is None else static_rows
        baseline = static_rows if self._is_stepped_back and not breaks_slo else chosen.to_ranges()
        if baseline != publish:  # a window of the control group replaces it
            pool.standing = baseline, self._probe_ratio(baseline)
        if static_reason is not None:  # no trial beside the static K
            pool.trial = None
            return self._answer(static_reason, chosen, publish, gain)
        trial = self._trial(chosen) if reason in (Reason.OPTIMAL, Reason.DWELL) else None
        if trial is None:
            pool.trial = None
        return self._answer(Reason.TRIAL if trial else reason, chosen, publish, gain, trial)

    def _guided(
        self, reason: Reason, chosen: KTable, static_rows: Ranges, gain: float | None, *, breaks_slo: bool
    ) -> TickResult:
        """Return the result where engines choose K; those in a window of the control group run the static K."""
        pool, policy = self._pool, self._policy
        is_known = reason not in _UNKNOWN
        is_back = self._is_stepped_back and not breaks_slo
        may_draw = is_known and self._context.arm is None and not breaks_slo
        drawn = pool.hold_out.drawn(pool.engines, self._at, policy.hold_out_ratio) if may_draw else ()
        if is_known:
            is_static = is_back is not (0 < len(drawn) == len(pool.engines))
            static_reason = Reason.STATIC_BETTER if is_back else Reason.HOLD_OUT
            reason = static_reason if is_static else Reason.ENGINE
        baseline = static_rows if is_back else chosen.to_ranges()
        pool.standing = baseline, self._probe_ratio(baseline)  # for a freeze: guidance is no K that it could hold
        pool.trial = None
        return replace(
            self._answer(reason, chosen, static_rows, gain),
            probe_ratio=policy.probe_ratio,
            guidance=self._context.guidance(),
            fleet=self._model.shared(),
            drawn=drawn,
            is_fallen_back=is_back,
        )

    def _is_in_force(self, rows: Ranges) -> bool:
        """Return whether the schedule in force has these rows, and engines follow them."""
        in_force = self._context.in_force
        return in_force is not None and in_force.guidance is None and in_force.classes == rows

    @property
    def _is_guided(self) -> bool:
        """Return whether the engines choose K, by the guidance in force."""
        return self._followed is not None and self._followed.guidance is not None

    def _set_standing(self, chosen: KTable | None) -> None:
        """Keep the rows that a freeze of the current K holds, and their probe ratio; without such a freeze drop them.

        They are those of the last tick, else the rows in force (after a canary, of the remaining arm). Where engines
        choose K they are `chosen`, since the rows in force then have the static K.
        """
        pool, in_force = self._pool, self._context.in_force
        if self._context.hold is not Hold.CURRENT:
            pool.standing = None
        elif pool.standing is None and in_force is not None:
            is_guided = in_force.guidance is not None and not in_force.is_fallen_back
            if is_guided and chosen is not None:
                rows = chosen.to_ranges()
                pool.standing = rows, self._probe_ratio(rows)
            else:
                pool.standing = in_force.classes, in_force.probe_ratio

    @property
    def _is_stepped_back(self) -> bool:
        """Return whether the static K is in force outside drawn windows, which run the law."""
        is_judged = self._context.arm is not Arm.CANARY and self._policy.hold_out_ratio > 0
        return is_judged and self._pool.hold_out.is_stepped_back

    def _withdrawal(self, static: KTable) -> Ranges | None:
        """Return the rows that replace a schedule from before `advise`, which engines would hold; `None` without one.

        Engines also hold a schedule that Redis lost.
        """
        context, rows = self._context, static.to_ranges()
        if context.hold is not None:
            return None
        if context.in_force is None:
            return rows if context.engines_version else None
        return None if self._is_in_force(rows) else rows

    def _last_choice(self) -> KTable | None:
        """Return the law's last choice; `None` without one, or if it had other rows."""
        last = self._pool.chosen
        is_alike = last is not None and last.names == self._rows.names and np.array_equal(last.n, self._n)
        return last if is_alike else None

    def _in_place(self) -> KTable:
        """Return the rows that engines follow, else the static K."""
        has_rows = self._followed is not None and not self._is_guided
        return self._in_force() if has_rows else self._uniform(self._context.fallback_k)

    @property
    def _followed(self) -> Schedule | None:
        """Return the schedule in force if engines follow it; in mode `advise` they do only under a freeze."""
        is_steered = self._policy.mode is Mode.ACT or self._context.hold is not None
        return self._context.in_force if is_steered else None

    def _in_force(self) -> KTable:
        """Return the engines' K: the schedule in force, or their static K if none is published."""
        context, names = self._context, self._rows.names
        if self._followed is None:
            return KTable.uniform(names, self._n, context.unsteered_k)
        found = KTable.of_ranges(self._followed.classes, names, self._n)
        return found.with_k(np.minimum(found.k, context.k_max))  # an engine that joined may have a smaller K_max

    def _bounded_static(self) -> KTable:
        """Return the static K by class, moved inside bounds and pins."""
        k = self._context.fallback_k
        low, high = np.array([self._context.bounds(name) for name in self._policy.class_names]).T
        return KTable.uniform(self._policy.class_names, self._n, k).clipped(low, high)

    def _decide(self, before: KTable) -> tuple[KTable, Reason, float | None]:
        """Return the law's table, the reason, and the predicted gain (`TickResult.gain_ratio`).

        `before` is the table to go on from. If the cost is known, rows without traffic are set at once, because they
        serve no request.
        """
        pool, now = self._pool, self._now
        if pool.is_stale(now):
            return before, Reason.STALE, None
        if pool.is_idle:
            return before, Reason.IDLE, None
        cost, lengths = pool.cost.fit(), self._model.lengths(self._context.k_max)
        self._describe()
        if cost is None:
            return before, Reason.COST_UNKNOWN, None
        self._evidence["cost"] = cost.described()
        setting = self._rows.setting(self._context, pool.load, lengths, cost, self._tuning)
        choice = self._choice = Choice(setting)
        before = before.with_k(choice.prepared(self._n, before.k, self._tuning.urgent_gain_ratio))
        best = before.with_k(choice.even(self._n, choice.best(self._n, before.k), self._tuning.even_ratio))
        present = before.indices_at(pool.load.points)
        now_gain = float((self._gains(best, before, pool.load.points) * pool.load.weights).sum())
        if now_gain < 0:  # the loss of smoothing, or of the rule that K rises with the band, at the present load
            best, now_gain = _with_rows(best, before, present), 0.0
        static = self._uniform(self._context.fallback_k)
        predicted = self._describe_throughput({"in_force": self._in_force(), "best": best, "static": static})
        gain = predicted["best"] / predicted["in_force"] - 1
        if self._policy.mode is Mode.ACT and (self._yield(before, pool.load.points).score > 0).all():
            gain = now_gain  # no SLO breaks, so the gain is in the objective
        worth = now_gain >= max(self._policy.minimum_gain_ratio, 1e-6)
        is_urgent = now_gain >= self._tuning.urgent_gain_ratio
        if not worth:  # the present load keeps its K; other loads may change theirs
            elsewhere = self._gains(best, before, self._n) >= self._tuning.urgent_gain_ratio
            elsewhere[present] = False
            if not elsewhere.any():
                return before, Reason.OPTIMAL, gain
            patched = before.with_k(np.where(elsewhere[:, None], best.k, before.k))
            even = before.with_k(choice.even(self._n, patched.k, self._tuning.even_ratio))
            best = _with_rows(even, before, present)
        if now - pool.changed_at < self._policy.dwell_s and not is_urgent:
            return before, Reason.DWELL, gain
        pool.changed_at = now
        return best, Reason.GAIN, gain

    def _estimate(self, before: KTable) -> tuple[KTable, Reason, float | None]:
        """Return the estimated choice of the engines, the reason, and the gain, as `_decide`."""
        pool, context = self._pool, self._context
        if pool.is_stale(self._now):
            return before, Reason.STALE, None
        if pool.is_idle:
            return before, Reason.IDLE, None
        self._describe()
        mix = representative(pool.mixes)
        if mix is None:
            return before, Reason.COST_UNKNOWN, None
        estimate = self._estimated = Estimate(context, mix, self._model.lengths(context.k_max))
        chosen = estimate.table(self._n)
        in_force = chosen if self._is_guided else self._in_force()
        tables = {"in_force": in_force, "best": chosen, "static": self._uniform(context.fallback_k)}
        predicted = {name: estimate.throughput(table.to_ranges()) for name, table in tables.items()}
        throughput = {name: found for name, (found, _) in predicted.items()}
        self._put_throughput(throughput, predicted["in_force"][1])
        return chosen, Reason.ENGINE, throughput["best"] / throughput["in_force"] - 1

    def _gains(self, best: KTable, before: KTable, decodes: Vector) -> Vector:
        """Return the gains in score of `best` over `before` at `decodes`, as ratios; infinite if an SLO is now kept.

        If both break SLOs, it is the relative decrease of the worst excess.
        """
        new, old = self._yield(best, decodes).score, self._yield(before, decodes).score
        kept = new / np.maximum(old, 1e-12) - 1
        less = old / np.minimum(new, -1e-12) - 1
        found: Vector = np.where(old > 0, kept, np.where(new > 0, math.inf, less))
        return found

    def _yield(self, table: KTable, decodes: Vector) -> Yield:
        """Return the predictions for `table` at `decodes`, which need not be whole numbers."""
        assert self._choice is not None
        return self._choice.evaluate(decodes, table.k[table.indices_at(decodes)])

    def _trial(self, chosen: KTable) -> Trial | None:
        """Return the trial of one engine, and record it; `None` without one."""
        pool, tuning, load = self._pool, self._tuning, self._pool.load
        if self._choice is None:
            return None
        octave = round(math.log2(max(load.decodes, 1.0)))
        if pool.trial is not None:
            trial, seconds = pool.trial, self._now - pool.trial.since
            is_over = pool.cost.is_measured(trial.depth, trial.decodes) or seconds >= tuning.trial_limit_s
            is_like = is_near(trial.decodes, load.decodes, tuning.near_ratio)
            if not is_over and is_like:
                return self._trial_of(trial)
        # A new trial: of no drafter, a third of K_max, and K_max, the most promising depth that may be tried.
        reached = self._yield(chosen, load.points).score
        k_max, promising = self._context.k_max, []
        for depth in dict.fromkeys((0, max(1, k_max // 3), k_max)):
            is_rested = self._now - pool.tried_at.get((depth, octave), -math.inf) >= tuning.trial_rest_s
            if not is_rested or pool.cost.is_measured(depth, load.decodes) or not self._is_allowed(depth):
                continue
            score = self._yield(self._uniform(depth), load.points).score
            # A depth without any measurement needs no predicted score; else it must come close to the chosen table's.
            least = 0.0 if not pool.cost.is_measured(depth) else (1 - tuning.trial_slack_ratio) * reached
            if (score > 0).all() and float(((score - least) * load.weights).sum()) >= 0:
                promising.append((float((score * load.weights).sum()), depth))
        if not promising or not any(pool.running.values()):
            return None
        _, engine_id = min((abs(math.log(n / load.decodes)), name) for name, n in pool.running.items() if n > 0)
        pool.trial = RunningTrial(max(promising)[1], load.decodes, engine_id, self._now)
        pool.tried_at[pool.trial.depth, octave] = self._now
        return self._trial_of(pool.trial)

    def _is_allowed(self, depth: int) -> bool:
        """Return whether a running class may have `depth`; bounds and pins of absent classes do not count."""
        present = {name if name in self._policy.class_names else DEFAULT_CLASS for name, _ in self._pool.load.mix}
        return any(low <= depth <= high for low, high in map(self._context.bounds, present))

    def _uniform(self, depth: int) -> KTable:
        return KTable.uniform(self._rows.names, self._n, depth).clipped(self._rows.low, self._rows.high)

    def _trial_of(self, trial: RunningTrial) -> Trial:
        return Trial(trial.engine_id, self._tuning.trial_limit_s, self._uniform(trial.depth).to_ranges())

    def _measure_hold_out(self, *, is_static_in_force: bool) -> None:
        pool, context, policy = self._pool, self._context, self._policy
        if context.arm is Arm.CANARY:
            pool.hold_out.pause()
            return
        required = tuple(requirements(context, name) for name in policy.class_names)
        pool.hold_out.compare(Comparison(context.fallback_k, policy.objective, self._weights, required, policy.law))
        if context.arm is not None:  # a canary's alternating policies do not reset the count
            pool.hold_out.pause()
        elif policy.hold_out_ratio <= 0:
            pool.hold_out.reset()
        elif policy.mode is not Mode.ACT:
            pool.hold_out.pause()
        elif context.in_force is not None and context.in_force.trial is None:
            self._log_gains = pool.hold_out.take(self._units(is_static_in_force=is_static_in_force), self._at)

    def _units(self, *, is_static_in_force: bool) -> dict[str, Seen]:
        """Return the units of the control group: the engines where they choose K, otherwise the pool."""
        pool, in_force, ahead_s = self._pool, self._context.in_force, self._at - self._now
        if self._policy.law is Law.ENGINE:
            guided = in_force if in_force is not None and in_force.guidance is not None else None
            static = {
                name: is_static_in_force if guided is None else not guided.is_guided(name) for name in pool.engines
            }
            return {name: Seen(seen, seen.at + ahead_s, static[name]) for name, seen in pool.engines.items()}
        seen_at = self._at if self._snapshot is None else self._snapshot.at + ahead_s
        return {f"{self._context.model} {self._context.pool}": Seen(self._snapshot, seen_at, is_static_in_force)}

    def _static_reason(
        self, reason: Reason, decided: Reason, *, is_static_in_force: bool, breaks_slo: bool
    ) -> Reason | None:
        """Return the reason that the engines get the static K, `None` if they do not.

        Without fresh evidence a pool that has fallen back keeps it.
        """
        is_stepped_back = self._pool.hold_out.is_stepped_back
        if decided in _UNKNOWN:
            return reason if is_stepped_back and is_static_in_force else None
        if breaks_slo or not self._is_static_due():
            return None
        return Reason.STATIC_BETTER if is_stepped_back else Reason.HOLD_OUT

    def _is_static_due(self) -> bool:
        if self._context.arm is not None:  # no window is drawn; windows of the present policy keep the pool's state
            return self._is_stepped_back
        if self._policy.hold_out_ratio <= 0:
            return False
        pool = f"{self._context.model} {self._context.pool}"
        is_drawn = bool(self._pool.hold_out.drawn([pool], self._at, self._policy.hold_out_ratio))
        return is_drawn is not self._pool.hold_out.is_stepped_back

    def _breaks_slo(self, static: KTable, chosen: KTable) -> bool:
        """Return whether `static` is predicted to break an SLO that `chosen` keeps, at the present load."""
        if self._estimated is not None:
            static_rows, chosen_rows = static.to_ranges(), chosen.to_ranges()
            return self._estimated.keeps_slos(chosen_rows) and not self._estimated.keeps_slos(static_rows)
        if self._choice is None:
            return False
        points = self._pool.load.points
        return bool(((self._yield(static, points).score <= 0) & (self._yield(chosen, points).score > 0)).any())

    def _describe(self) -> None:
        pool, evidence = self._pool, self._pool.evidence
        classes: dict[str, dict[str, Any]] = {}
        bands = self._model.described(self._context.k_max)
        for (name, band), share in pool.load.running.items():
            found = classes.setdefault(name, {"share": 0.0, "measured_length": None})
            found["share"] += share
            if band < len(bands):
                bands[band]["share"] = bands[band].get("share", 0.0) + share
        for name, found in classes.items():
            drafts = sum(count for (owner, _), count in evidence.drafts_of.items() if owner == name)
            tokens = sum(count for (owner, _), count in evidence.decode_tokens.items() if owner == name)
            found["measured_length"] = tokens / drafts if drafts else None
        self._evidence |= {
            "decodes": pool.load.decodes,
            "drafts": sum(evidence.drafts.values()),
            "steps": evidence.steps,
            "cost_surprise_ratio": pool.cost.surprise_ratio,
            "classes": classes,
            "bands": {str(band): found for band, found in enumerate(bands) if found},
        }

    def _describe_throughput(self, tables: Mapping[str, KTable]) -> dict[str, float]:
        """Return the predicted throughput of each of `tables` at the present load, and put it into the evidence."""
        load = self._pool.load
        found = {name: self._yield(table, load.points) for name, table in tables.items()}
        times = {name: float((load.weights * item.step_s).sum()) for name, item in found.items()}
        # All tables have the present table's time at each number of decodes. With the shares of steps as weights, a
        # table with longer steps at few decodes would spend more time there and seem worse than it is.
        time_of = load.weights * found["in_force"].step_s / times["in_force"]
        predicted = {name: float((time_of * item.throughput).sum()) for name, item in found.items()}
        self._put_throughput(predicted, times["in_force"])
        return predicted

    def _put_throughput(self, predicted: Mapping[str, float], step_s: float) -> None:
        """Put predicted throughputs and the predicted step into the evidence, beside the measured ones."""
        evidence, snapshot, scores = self._pool.evidence, self._snapshot, None
        if snapshot is not None:
            sums = WindowSums()
            sums.take(snapshot)
            scores = sums.log_scores(1.0, self._weights)
        self._evidence["throughput"] = {
            **{f"predicted_{name}": throughput for name, throughput in predicted.items()},
            "measured": math.exp(scores.corrected) if scores else None,
        }
        self._evidence["step_s"] = {
            "predicted": step_s,
            "measured": snapshot.corrected_s / evidence.steps if snapshot and evidence.steps else None,
        }

    def _answer(
        self, reason: Reason, proposed: KTable, publish: Ranges | None, gain: float | None, trial: Trial | None = None
    ) -> TickResult:
        if self._policy.hold_out_ratio > 0 or self._context.arm is not None:
            found = self._pool.hold_out.described()
            is_paused = self._policy.mode is not Mode.ACT or self._context.arm is not None
            self._evidence["hold_out"] = {**found, "is_paused": is_paused}
        if trial is not None and self._pool.trial is not None:
            self._evidence["trial"] = {"engine_id": trial.engine_id, "k": self._pool.trial.depth}
        return TickResult(
            reason=reason,
            proposed=proposed.to_ranges(),
            publish=publish,
            probe_ratio=self._probe_ratio(publish),
            gain_ratio=gain,
            evidence=_rounded(self._evidence),
            trial=trial,
            log_gains=tuple(self._log_gains),
            standing=self._pool.standing if self._context.hold is Hold.CURRENT else None,
        )

    def _probe_ratio(self, rows: Ranges | None) -> float:
        """Return the probe ratio under `rows`: only rows of bands have probes."""
        has_bands = rows is not None and any(row_parts(name)[1] is not None for name in rows)
        return self._policy.probe_ratio if has_bands else 0.0


def _with_rows(table: KTable, other: KTable, rows: NDArray[np.int64]) -> KTable:
    """Return `table` with `rows`, indices of its n, taken from `other`."""
    k = table.k.copy()
    k[rows] = other.k[rows]
    return table.with_k(k)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_SIGNIFICANT_DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return value
