"""Runs the canaries of all models in one controller: collects their blocks, tests them, and reports them. Pure.

Every controller collects and reports, from the results of its own ticks; only the leader tests, in ticks in which Redis
answered. All state that must outlive a controller is in the `Experiment`, which this module returns and the loop
writes. A new leader that was a stand-by before loses no block.

A block that is over counts if a pool has a gain in it. Otherwise it is lost: without traffic if all went as planned, or
interrupted, if in a part of it no controller ran, Redis did not answer, the model was frozen, or the schedule in force
was not the planned one.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace

from specpilot.controller.decision.context import PoolContext, TickResult
from specpilot.controller.decision.reason import Reason
from specpilot.controller.estimation.switchback import BlockGain
from specpilot.controller.experiments.canary import described, ended, judge, plan_of
from specpilot.policy.canary import Block, Canary, Experiment, Gain, Lost
from specpilot.policy.gain import LogGain
from specpilot.policy.names import PoolKey


@dataclass(slots=True)
class _Record:
    """The record of one experiment: numbers of windows, and gains by block and pool.

    `windows`: those in which this controller ran and the model was not frozen. `with_pool`: those in which the model
    had a pool that can speculate. `until`: that of the last tick.
    """

    windows: set[int] = field(default_factory=set)
    with_pool: set[int] = field(default_factory=set)
    gains: dict[int, dict[str, BlockGain]] = field(default_factory=dict)
    until: int = 0

    def lost(self, canary: Canary, block: int) -> Lost:
        """Return the cause for which a block without a gain is lost."""
        windows = set(range(block * canary.windows, (block + 1) * canary.windows))
        has_no_traffic = block in self.gains or not windows & self.with_pool
        return Lost.NO_TRAFFIC if windows <= self.windows and has_no_traffic else Lost.INTERRUPTED


class Runner:
    """One controller's state of the running experiments."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}
        self._running: dict[PoolKey, str] = {}

    def judge(
        self, experiments: Iterable[Experiment], policy_versions: Mapping[str, int], at: float
    ) -> list[Experiment]:
        """Begin a tick of the leader at `at`; return the experiments that changed and must be written."""
        changed = []
        for experiment in experiments:
            if not experiment.is_running:
                continue
            measured, version = experiment, policy_versions.get(experiment.model, 0)
            while (outcome := judge(measured, version)) is None and (closed := self._closed(measured)) is not None:
                measured = closed  # each block by itself, so that no test of a promotion is left out
            if outcome is not None:
                measured = ended(measured, outcome, at)
            if measured is not experiment:
                changed.append(replace(measured, version=experiment.version + 1))
        return changed

    def add(self, experiment: Experiment | None, result: TickResult) -> None:
        """Add the gains that the tick of one pool completed."""
        if experiment is not None:
            gains = self._records.setdefault(experiment.experiment_id, _Record()).gains
            for gain in result.canary_gains:
                gains.setdefault(gain.block, {})[gain.unit] = gain

    def end_tick(
        self, experiments: Iterable[Experiment], with_pool: Container[str], frozen: Container[str], at: float
    ) -> None:
        """End a tick in which all pools were steered.

        `with_pool` are models with a pool that can speculate, `frozen` are models; `at` determined the windows.
        """
        running = {item.experiment_id: item for item in experiments if item.is_running}
        self._records = {name: self._records.get(name, _Record()) for name in running}
        for name, experiment in running.items():
            record, window = self._records[name], plan_of(experiment).window(at)
            record.until = window
            if experiment.model not in frozen:
                record.windows.add(window)
            if experiment.model in with_pool:
                record.with_pool.add(window)

    def _closed(self, experiment: Experiment) -> Experiment | None:
        """Return `experiment` with one more block, if it is over and not stored yet; otherwise `None`."""
        canary, index = experiment.canary, experiment.closed
        record = self._records.get(experiment.experiment_id, _Record())
        if index >= canary.max_blocks or record.until < (index + 1) * canary.windows:
            return None
        gains = {
            pool: _stored(block_gain.gain, block_gain.busy_s)
            for pool, block_gain in sorted(record.gains.get(index, {}).items())
            if block_gain.gain is not None
        }
        if gains:
            return replace(experiment, blocks=(*experiment.blocks, Block(index, gains)))
        lost = record.lost(canary, index)
        return replace(experiment, lost={**experiment.lost, lost: experiment.lost.get(lost, 0) + 1})

    def reported(self, experiment: Experiment | None, context: PoolContext, result: TickResult) -> TickResult:
        """Return `result` with the canary's numbers; in the first tick after its end, its end is the reason."""
        if experiment is None:
            return result
        place = (context.model, context.pool)
        if experiment.is_running:
            self._running[place] = experiment.experiment_id
            arm = None if context.window is None else context.window.arm
            return replace(result, evidence={**result.evidence, "canary": described(experiment, arm)})
        if self._running.pop(place, None) != experiment.experiment_id or experiment.outcome is None:
            return result
        evidence = {**result.evidence, "canary": {**described(experiment, None), **experiment.evidence}}
        return replace(result, reason=Reason.CANARY_ENDED, evidence=evidence)


def _stored(gain: LogGain, busy_s: float) -> Gain:
    return Gain(round(busy_s, 3), *(round(value, 6) for value in gain))
