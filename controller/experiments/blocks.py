"""Measures a canary's blocks: from the engines' counters to the gain of each finished block.

A window is measured like one of the control group, in throughput and in latency (`window_sums`), with equal weights of
all classes. When a block has several windows of the present policy, the mean of their logarithms counts.

Catching up counts in the window in which it runs. Only the corrected throughput, which is not tested, charges it to the
decodes at K = 0 that made it necessary.

Not counted:

- snapshots that began less than `delivered_s` after the window's first tick: the schedule may not have arrived. A
  window with fewer than `window_steps` steps makes its block `no_traffic` (`tuning`);
- a block during which the schedule in force is not certain (`interrupted`): this controller did not lead from its
  beginning to its end, or it paused or lost Redis for more than `GAP_S` beyond its interval, or the model was frozen,
  or the clock was set back.
"""

from collections import Counter
from dataclasses import dataclass, field, replace

from specpilot.controller.estimation.observation import Snapshot
from specpilot.controller.estimation.window_sums import ROUNDING_S, Scores, WindowSums, mean
from specpilot.controller.experiments.canary import CanaryWindow, window_at
from specpilot.controller.tuning import Tuning
from specpilot.policy.canary import Arm, Block, Experiment, Gain, Lost

GAP_S = 5.0
"""Longest time between two ticks, beyond the loop's interval, for which the schedule in force is certain."""
_TUNING = Tuning()


@dataclass(slots=True)
class _Window:
    """One window of one pool. Snapshots that end by `seen_at` are already in its sums, or do not count."""

    arm: Arm
    seen_at: float
    sums: WindowSums = field(default_factory=WindowSums)


@dataclass(slots=True)
class BlockSums:
    """The running block of one experiment, measured in ticks about `interval_s` apart."""

    interval_s: float = 0.5
    block: int | None = None
    is_interrupted: bool = False
    last_at: float | None = None
    windows: dict[tuple[str, int], _Window] = field(default_factory=dict)
    closed: list[Block | Lost] = field(default_factory=list)
    version: int = 0

    def roll(self, experiment: Experiment, at: float) -> Experiment:
        """Begin the tick at `at`; return `experiment` with the blocks that ended and are not stored yet, if any.

        A block counts as stored once the experiment has another version than the one that it was returned with.
        Call only in ticks in which this controller leads and Redis answers.
        """
        if self.last_at is not None and not 0 <= at - self.last_at <= GAP_S + self.interval_s:
            self.is_interrupted = True
        now = window_at(experiment, "", at)
        if experiment.version != self.version:
            self.closed.clear()
            self.version = experiment.version
        if self.block is not None and (now is None or now.block != self.block):
            self.closed.append(self._close(experiment, self.block))
        if now is None:
            self.block = None
        elif now.block != self.block:
            self.block = now.block
            self.windows.clear()
            self.is_interrupted = now.block_age_s > GAP_S + self.interval_s
        blocks = tuple(item for item in self.closed if isinstance(item, Block))
        lost = [item for item in self.closed if isinstance(item, Lost)]
        if not self.closed:
            return experiment
        return replace(
            experiment,
            blocks=(*experiment.blocks, *blocks),
            lost=dict(Counter({**experiment.lost}) + Counter(lost)),
        )

    def add(self, pool: str, now: CanaryWindow, at: float, snapshot: Snapshot | None) -> None:
        """Add the newest snapshot of `pool`, its time in Unix seconds."""
        window = self.windows.setdefault((pool, now.slot), _Window(now.arm, at + _TUNING.delivered_s))
        # With a slow source the newest snapshot may have been added before, or belong to another window.
        if snapshot is None or snapshot.at - snapshot.elapsed_s < window.seen_at - ROUNDING_S:
            return
        window.seen_at = snapshot.at
        window.sums.take(snapshot)

    def end_tick(self, at: float) -> None:
        """End the tick at `at`."""
        self.last_at = at

    def _close(self, experiment: Experiment, index: int) -> Block | Lost:
        pools = {pool for pool, _ in self.windows}
        gains = {pool: gain for pool in sorted(pools) if (gain := self._gain(pool, experiment))}
        if gains and not self.is_interrupted:
            return Block(index, gains)
        return Lost.INTERRUPTED if self.is_interrupted else Lost.NO_TRAFFIC

    def _gain(self, pool: str, experiment: Experiment) -> Gain | None:
        windows = [window for (name, _), window in self.windows.items() if name == pool]
        scores: dict[Arm, list[Scores]] = {arm: [] for arm in Arm}
        for window in windows:
            found = window.sums.log_scores(_TUNING.window_steps)
            if found is None:
                return None
            scores[window.arm].append(found)
        if len(windows) < experiment.canary.windows:
            return None
        (canary,), present = scores[Arm.CANARY], mean(scores[Arm.PRESENT])
        pairs = zip(canary.counted, present.counted, strict=True)
        throughput, itl = (round(one - other, 6) for one, other in pairs)
        corrected = round(canary.corrected - present.corrected, 6)
        return Gain(round(sum(window.sums.busy_s for window in windows), 3), throughput, itl, corrected)
