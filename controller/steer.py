"""One pool, one tick: from what was learned to a verdict, through every rule in order.

1. Engines that cannot speculate get K = 0.
2. Evidence that is stale, or no traffic: the schedule in force is held.
3. Depths whose cost or acceptance nobody knows are explored (mode `act` only), or the schedule is held.
4. The latest change is compared with what it replaced, and rolled back if it was worse.
5. The optimum is computed and passes the guard.
6. The mode says what of it is published: all (`act`), or the static K (`advise`, `off`).

Bounds and pins hold in every case but `off`, where the static K alone holds. Where nothing is in force yet, the static
K takes its place.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from controller import rows
from controller.decide import Matrix, grid
from controller.estimate import Acceptance, ModelAcceptance
from controller.facts import Facts, Verdict
from controller.guard import LoadKind, Reason, Standing
from controller.load import Operation
from controller.memory import PoolMemory
from controller.probe import affordable_ratio
from controller.propose import Problem, demand, proposals, wanted
from controller.step_cost import StepCost
from controller.tuning import Tuning
from policy.types import CLASS_LIMIT, OTHER, Mode

_SIGNIFICANT_DIGITS = 6


class Steering:
    """The working of one tick for one pool. Make one, ask it for its verdict, drop it."""

    def __init__(self, facts: Facts, pool: PoolMemory, model: ModelAcceptance, tuning: Tuning, now: float) -> None:
        self._facts = facts
        self._policy = facts.policy
        self._pool = pool
        self._model = model
        self._tuning = tuning
        self._now = now
        seen = [name for name in (*model.classes, *pool.load.mix) if name != OTHER]
        self._names = tuple(dict.fromkeys([*facts.policy.class_names, *seen]))[:CLASS_LIMIT]
        self._n = grid(max(1, facts.max_num_seqs))
        self._low, self._high = np.array([facts.bounds(name) for name in self._names]).T
        self._evidence: dict[str, Any] = pool.ages(now)

    def verdict(self) -> Verdict:
        """Return what to do and why."""
        static = self._uniform(self._facts.fallback_k)
        mode = self._policy.mode
        if self._facts.k_max == 0:
            return self._answer(Reason.NO_DRAFTER, static, static, 0.0, None)
        bounded_static = self._inside(static)
        applied = {Mode.OFF: static, Mode.ADVISE: bounded_static, Mode.ACT: self._published(bounded_static)}[mode]
        before = applied
        if mode is Mode.ACT and self._pool.left_for_exploring is not None:
            before = self._within_engines(rows.of_schedule(self._pool.left_for_exploring, self._names, self._n))
        if mode is Mode.ADVISE and self._pool.advised is not None and self._pool.advised.shape == static.shape:
            before = self._pool.advised
        chosen, reason, gain, probe_ratio = self._decide(self._inside(before), applied)
        if reason is not Reason.EXPLORE:
            self._pool.left_for_exploring = None
        if mode is Mode.OFF:
            return self._answer(Reason.OFF, chosen, static, 0.0, gain)
        if mode is Mode.ADVISE:
            self._pool.advised = chosen
            return self._answer(reason, chosen, bounded_static, probe_ratio, gain)
        if not np.array_equal(self._inside(before), before) and reason not in (Reason.GAIN, Reason.EXPLORE):
            reason = Reason.BOUNDS
        return self._answer(reason, chosen, chosen, probe_ratio, gain)

    def _uniform(self, k: int) -> Matrix:
        return np.full((len(self._n), len(self._names)), k, dtype=np.int64)

    def _inside(self, k: Matrix) -> Matrix:
        inside: Matrix = np.clip(k, self._low[None, :], self._high[None, :])
        return inside

    def _published(self, static: Matrix) -> Matrix:
        in_force = self._facts.in_force
        return static if in_force is None else self._within_engines(rows.of_schedule(in_force, self._names, self._n))

    def _within_engines(self, k: Matrix) -> Matrix:
        """What the engines make of `k`: one that joined may draft less than those that it was decided for."""
        return np.minimum(k, self._facts.k_max)

    def _decide(self, before: Matrix, applied: Matrix) -> tuple[Matrix, Reason, float | None, float]:
        """Return the schedule, the reason, the predicted gain of the best one, and the share of probes."""
        pool, now, wish = self._pool, self._now, self._policy.probe_ratio
        if pool.is_stale(now):
            return before, Reason.STALE, None, wish
        if pool.is_idle(now):
            return before, Reason.IDLE, None, wish
        cost = pool.step_cost()
        shares = pool.load.shares()
        known = {name: self._model.estimate(name, self._facts.k_max) for name in self._names}
        self._describe(shares, known, cost)
        missing = self._missing_depths(is_drafting_known=any(found is not None for found in known.values()))
        if missing and self._policy.mode is Mode.ACT:
            depth = pool.explorer.next_depth(sorted(missing, reverse=True), pool.load.decodes, now)
            if depth is not None:
                return self._explored(depth), Reason.EXPLORE, None, wish
        if cost is None or any(depth in pool.cost.lacking(self._facts.k_max) for depth in missing):
            self._evidence["cost_unknown_at_k"] = list(missing)
            return before, Reason.COST_UNKNOWN, None, wish
        estimates = {name: found for name, found in known.items() if found is not None}
        if not any(shares.get(name) for name in estimates):
            return before, Reason.ACCEPTANCE_UNKNOWN, None, wish
        return self._optimise(before, applied, estimates, cost)

    def _missing_depths(self, *, is_drafting_known: bool) -> list[int]:
        """Return the depths that nobody tried, as far as the bounds of all classes together allow them."""
        low, high = int(self._low.max()), int(self._high.max())
        missing = [k for k in self._pool.cost.lacking(high) if low <= k <= high]
        return missing if missing or is_drafting_known or not high else [high]

    def _optimise(
        self, before: Matrix, applied: Matrix, estimates: Mapping[str, Acceptance], cost: StepCost
    ) -> tuple[Matrix, Reason, float, float]:
        pool, policy, n, now = self._pool, self._policy, self._n, self._now
        shares = pool.load.shares()
        demands = {
            column: demand(self._facts, name, shares.get(name, 0.0), estimates[name])
            for column, name in enumerate(self._names)
        }
        present = {column: item for column, item in demands.items() if item.share > 0}
        absent = {column: item for column, item in demands.items() if item.share <= 0}
        operation = Operation.at(pool.load, n, present, cost, policy.objective)
        found = proposals(present, absent, Problem(n, before, cost, policy.objective))
        best = wanted(found, before)
        gain = operation.goodput(best) / operation.goodput(applied) - 1
        static = self._uniform(self._facts.fallback_k)
        self._describe_goodput(operation, {"in_force": applied, "best": best, "static": static})
        worse_than = self._compare(operation, applied)
        depth = self._depth_to_try(operation, best)
        if depth is not None:
            return self._explored(depth), Reason.EXPLORE, gain, policy.probe_ratio
        if worse_than is not None:
            chosen, reason = self._inside(worse_than), Reason.ROLLBACK
            pool.guard.mark_changed(self._names, len(n), now)
        else:
            chosen, reason = pool.guard.gate(
                Standing(self._names, before, n, operation.activity(len(n))),
                found,
                minimum_gain_ratio=policy.minimum_gain_ratio,
                dwell_s=policy.dwell_s,
                now=now,
            )
        probe_ratio = affordable_ratio(
            operation,
            chosen,
            k_max=self._facts.k_max,
            wanted_ratio=policy.probe_ratio,
            at_off=pool.cost.probe_at_off(pool.load.decodes, self._facts.k_max),
            tuning=self._tuning,
        )
        return chosen, reason, gain, probe_ratio

    def _depth_to_try(self, operation: Operation, best: Matrix) -> int | None:
        """Return a depth whose cost at this load is an extrapolation and that may be better than it looks."""
        decodes = self._pool.load.decodes
        is_paused = bool(self._pool.guard.paused(np.array([max(decodes, 1.0)]), self._now).any())
        if self._policy.mode is not Mode.ACT or is_paused or not self._pool.explorer.is_steady:
            return None
        low, high = int(self._low.max()), int(self._high.max())
        best_goodput = operation.goodput(best)
        promise = {
            k: operation.goodput(self._inside(self._uniform(k)))
            for k in range(low, high + 1)
            if not self._pool.cost.is_measured(decodes, k)
        }
        worth = sorted(
            (k for k, goodput in promise.items() if goodput >= (1 - self._slack(k)) * best_goodput),
            key=lambda k: -promise[k],
        )
        return self._pool.explorer.next_depth(worth, decodes, self._now)

    def _explored(self, depth: int) -> Matrix:
        """Return the schedule that tries `depth`, and note the one to go on from afterwards."""
        pool = self._pool
        pool.guard.forget_watch()
        pool.left_for_exploring = pool.left_for_exploring or self._facts.in_force
        return self._inside(self._uniform(depth))

    def _slack(self, k: int) -> float:
        return self._tuning.explore_slack_ratio if k else self._tuning.explore_off_slack_ratio

    def _compare(self, operation: Operation, applied: Matrix) -> Matrix | None:
        """Let the guard compare this tick with the schedule before; return that one if it was better."""
        guard, evidence = self._pool.guard, self._pool.evidence
        if self._pool.looks == self._pool.looks_compared:
            return None  # this look has had its say
        self._pool.looks_compared = self._pool.looks
        measured = operation.measured(evidence, self._pool.left_s())
        if not self._tuning.guard or self._policy.mode is not Mode.ACT or measured is None:
            return None
        if self._pool.fresh_looks or self._pool.cost.is_in_doubt:
            return None
        previous = guard.previous
        if previous is not None and previous.shape != applied.shape:
            guard.forget_watch()
            previous = None
        then = None
        if previous is not None:
            # Where an SLO or latency is wanted, a change may be meant to cost goodput: then its own prediction counts.
            then = min(operation.goodput(self._within_engines(previous)), operation.goodput(applied))
        kind = LoadKind.of(self._pool.load.decodes, (demand.name for demand in operation.demands))
        return guard.compare(kind, measured, operation.goodput(applied), then, self._now)

    def _describe(
        self, shares: Mapping[str, float], known: Mapping[str, Acceptance | None], cost: StepCost | None
    ) -> None:
        evidence = self._pool.evidence
        self._evidence |= {
            "decodes": self._pool.load.decodes,
            "drafts": sum(evidence.drafts.values()),
            "steps": evidence.steps,
            "cost_surprise_ratio": self._pool.cost.surprise_ratio,
            "cost": None if cost is None else cost.described(),
            "classes": {
                name: {
                    "share": shares.get(name, 0.0),
                    "measured_length": _measured_length(evidence.decode_tokens, evidence.class_drafts, name),
                    "jumps": self._model.jumps.get(name, 0),
                    **({} if found is None else found.described()),
                }
                for name, found in known.items()
            },
        }

    def _describe_goodput(self, operation: Operation, schedules: Mapping[str, Matrix]) -> None:
        evidence = self._pool.evidence
        self._evidence["goodput"] = {
            **{f"predicted_{name}": operation.goodput(k) for name, k in schedules.items()},
            "measured": operation.measured(evidence, self._pool.left_s()),
        }
        self._evidence["step_s"] = {
            "predicted": operation.step_s(schedules["in_force"]),
            "measured": (evidence.step_seconds + self._pool.left_s()) / evidence.steps if evidence.steps else None,
        }
        busiest = int(operation.rows[operation.weights.argmax()])
        self._evidence["best_k"] = {name: int(schedules["best"][busiest, at]) for at, name in enumerate(self._names)}

    def _answer(
        self, reason: Reason, chosen: Matrix, publish: Matrix, probe_ratio: float, gain: float | None
    ) -> Verdict:
        return Verdict(
            reason=reason,
            wanted=rows.to_ranges(self._names, self._n, chosen),
            publish=rows.to_ranges(self._names, self._n, publish),
            probe_ratio=round(probe_ratio, _SIGNIFICANT_DIGITS),
            gain_ratio=gain,
            evidence=_rounded(self._evidence),
        )


def _measured_length(tokens: Mapping[str, float], drafts: Mapping[str, float], name: str) -> float | None:
    return tokens.get(name, 0.0) / drafts[name] if drafts.get(name) else None


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_SIGNIFICANT_DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return value
