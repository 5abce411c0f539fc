"""Runs the canaries of all models in one controller: measures their blocks, tests them, and reports them. Pure.

Only the leader measures and tests, in ticks in which Redis answered; every controller reports. All state that must
outlive a controller is in the `Experiment`, which this module returns and the loop writes: a new leader loses only the
running block.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from specpilot.controller.estimation.observation import Snapshot
from specpilot.controller.experiments.blocks import BlockSums
from specpilot.controller.experiments.canary import described, ended, judge, window_at
from specpilot.controller.law.context import PoolContext, TickResult
from specpilot.controller.law.reason import Reason
from specpilot.policy.canary import Experiment


class Runner:
    """One controller's state of the running experiments."""

    def __init__(self, interval_s: float = 0.5) -> None:
        self._interval_s = interval_s  # between two ticks
        self._sums: dict[str, BlockSums] = {}
        self._seen_running: dict[tuple[str, str], str] = {}  # by model and pool

    def judge(
        self, experiments: Iterable[Experiment], policy_versions: Mapping[str, int], at: float
    ) -> list[Experiment]:
        """Begin a tick of the leader at `at`; return the experiments that changed and must be written."""
        running = [item for item in experiments if item.is_running]
        ids = {item.experiment_id for item in running}
        self._sums = {name: sums for name, sums in self._sums.items() if name in ids}
        changed = []
        for experiment in running:
            measured = self._sums.setdefault(experiment.experiment_id, BlockSums(self._interval_s)).roll(experiment, at)
            outcome = judge(measured, policy_versions.get(experiment.model, 0), at)
            if outcome is not None:
                measured = ended(measured, outcome, at)
            if measured is not experiment:
                changed.append(replace(measured, version=experiment.version + 1))
        return changed

    def measure(self, experiment: Experiment, context: PoolContext, snapshot: Snapshot | None, at: float) -> None:
        """Add the newest snapshot of a pool, its time in Unix seconds, before the pool is steered."""
        now, sums = window_at(experiment, context.pool, at), self._sums.get(experiment.experiment_id)
        if now is None or sums is None:
            return
        sums.add(context.pool, now, at, snapshot)

    def interrupt(self, experiment: Experiment) -> None:
        """Mark the running block as interrupted, because the policies do not alternate: it does not count."""
        if experiment.experiment_id in self._sums:
            self._sums[experiment.experiment_id].is_interrupted = True

    def end_tick(self, experiments: Iterable[Experiment], at: float) -> None:
        """End a tick of the leader."""
        for experiment in experiments:
            if experiment.experiment_id in self._sums:
                self._sums[experiment.experiment_id].end_tick(at)

    def reported(self, experiment: Experiment | None, context: PoolContext, result: TickResult) -> TickResult:
        """Return `result` with the canary's numbers; in the first tick after its end, its end is the reason."""
        if experiment is None:
            return result
        place = (context.model, context.pool)
        if experiment.is_running:
            self._seen_running[place] = experiment.experiment_id
            return replace(result, evidence={**result.evidence, "canary": described(experiment, context.arm)})
        if self._seen_running.pop(place, None) != experiment.experiment_id or experiment.outcome is None:
            return result
        evidence = {**result.evidence, "canary": {**described(experiment, None), **experiment.evidence}}
        return replace(result, reason=Reason.CANARY_ENDED, evidence=evidence)
