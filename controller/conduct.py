"""Conducts the canaries of all models in one controller: measures their blocks, judges them, and tells of them.

Only the leader measures and judges, in ticks in which Redis answered; every controller tells. All that must outlive a
controller is in the `Experiment`, which the loop writes: a successor loses the running block and nothing else. Pure, as
the law: what must be written is returned.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from controller.canary import described, ended, judge, turn
from controller.facts import Facts, Verdict
from controller.guard import Reason
from controller.observation import Look
from controller.tally import Tally
from policy.canary import Experiment


class Conduct:
    """What one controller remembers of the running experiments."""

    def __init__(self) -> None:
        self._tallies: dict[str, Tally] = {}
        self._seen_running: dict[tuple[str, str], str] = {}  # by model and pool

    def judge(
        self, experiments: Iterable[Experiment], policy_versions: Mapping[str, int], at: float
    ) -> list[Experiment]:
        """Begin a tick of the leader at `at`; return the experiments that came to something new, to be written."""
        running = [item for item in experiments if item.is_running]
        ids = {item.experiment_id for item in running}
        self._tallies = {name: tally for name, tally in self._tallies.items() if name in ids}
        changed = []
        for experiment in running:
            measured = self._tallies.setdefault(experiment.experiment_id, Tally()).roll(experiment, at)
            outcome = judge(measured, policy_versions.get(experiment.model, 0), at)
            if outcome is not None:
                measured = ended(measured, outcome, at)
            if measured is not experiment:
                changed.append(replace(measured, version=experiment.version + 1))
        return changed

    def measure(self, experiment: Experiment, facts: Facts, look: Look | None, at: float) -> None:
        """Take in the newest look at a pool, its time in Unix seconds, before the pool is steered."""
        now, tally = turn(experiment, facts.pool, at), self._tallies.get(experiment.experiment_id)
        if now is None or tally is None:
            return
        tally.take(facts.pool, now, at, look)

    def end_tick(self, experiments: Iterable[Experiment], at: float) -> None:
        """End a tick of the leader."""
        for experiment in experiments:
            if experiment.experiment_id in self._tallies:
                self._tallies[experiment.experiment_id].end_tick(at)

    def told(self, experiment: Experiment | None, facts: Facts, verdict: Verdict) -> Verdict:
        """Return `verdict` with the canary's numbers; in the first tick after its end, with that as the reason."""
        if experiment is None:
            return verdict
        place = (facts.model, facts.pool)
        if experiment.is_running:
            self._seen_running[place] = experiment.experiment_id
            return replace(verdict, evidence={**verdict.evidence, "canary": described(experiment, facts.arm)})
        if self._seen_running.pop(place, None) != experiment.experiment_id or experiment.outcome is None:
            return verdict
        reason = Reason.CANARY_PROMOTED if experiment.outcome.is_promotion else Reason.CANARY_ROLLED_BACK
        return replace(verdict, reason=reason, evidence={**verdict.evidence, "canary": dict(experiment.evidence)})
