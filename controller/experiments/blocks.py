"""Measures a canary's blocks: from what the engines counted to the gain of each finished block.

A window is measured as the hold-out measures it, in throughput and in latency (`window_sums`), all classes alike. Where
a block has several windows of the present policy, the mean of their logarithms counts.

What a window's steps at K = 0 leave for the drafter to catch up counts as time of this window, at the pool's measured
seconds per row: whoever leaves it pays, also when it is spent in the other policy's turn.

What does not count:

- the time until a schedule has arrived: looks that began `delivered_s` or more after the window's first tick count, and
  windows with fewer than `window_steps` steps make their block `no_traffic` (`tuning`);
- a block that this controller did not lead from beginning to end, or in which it paused or lost Redis for more than
  `GAP_S` seconds over its interval, the model was frozen, or its clock was set back: nobody knows whose schedule was in
  force (`interrupted`).
"""

from collections import Counter
from dataclasses import dataclass, field, replace

from specpilot.controller.estimation.observation import Look
from specpilot.controller.estimation.window_sums import ROUNDING_S, WindowSums, mean
from specpilot.controller.experiments.canary import Turn, turn
from specpilot.controller.tuning import Tuning
from specpilot.policy.canary import Arm, Block, Experiment, Gain, Lost
from specpilot.policy.gain import LogGain

GAP_S = 5.0
"""Between two ticks, besides the loop's interval, after which it is unknown whose schedule was in force."""
_TUNING = Tuning()


@dataclass(slots=True)
class _Window:
    """One window of one pool; what happened until `seen_at` is in its sums, or does not count."""

    arm: Arm
    seen_at: float
    sums: WindowSums = field(default_factory=WindowSums)


@dataclass(slots=True)
class BlockSums:
    """The running block of one experiment, as this controller saw it, in ticks about `interval_s` apart."""

    interval_s: float = 0.5
    block: int | None = None
    is_interrupted: bool = False
    last_at: float | None = None
    windows: dict[tuple[str, int], _Window] = field(default_factory=dict)
    closed: list[Block | Lost] = field(default_factory=list)
    version: int = 0

    def roll(self, experiment: Experiment, at: float) -> Experiment:
        """Begin the tick at `at`; return `experiment` with the blocks that ended and are not written yet, if any.

        They are written once the stored experiment has another version than the one that they were returned with.
        Call it only in ticks in which this controller leads and Redis answers.
        """
        if self.last_at is not None and not 0 <= at - self.last_at <= GAP_S + self.interval_s:
            self.is_interrupted = True
        now = turn(experiment, "", at)
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

    def take(self, pool: str, now: Turn, at: float, look: Look | None) -> None:
        """Take in the newest look at `pool`, its time in Unix seconds."""
        own = self.windows.setdefault((pool, now.slot), _Window(now.arm, at + _TUNING.delivered_s))
        # Where the source is slow the newest look is one that was taken before, or one from another window.
        if look is None or look.at - look.elapsed_s < own.seen_at - ROUNDING_S:
            return
        own.seen_at = look.at
        own.sums.take(look)

    def end_tick(self, at: float) -> None:
        """End the tick: what comes next happens after `at`."""
        self.last_at = at

    def _close(self, experiment: Experiment, index: int) -> Block | Lost:
        pools = {pool for pool, _ in self.windows}
        gains = {pool: gain for pool in sorted(pools) if (gain := self._gain(pool, experiment))}
        if gains and not self.is_interrupted:
            return Block(index, gains)
        return Lost.INTERRUPTED if self.is_interrupted else Lost.NO_TRAFFIC

    def _gain(self, pool: str, experiment: Experiment) -> Gain | None:
        own = [window for (name, _), window in self.windows.items() if name == pool]
        scores: dict[Arm, list[LogGain]] = {arm: [] for arm in Arm}
        for window in own:
            found = window.sums.log_scores(_TUNING.window_steps)
            if found is None:
                return None
            scores[window.arm].append(found)
        if len(own) < experiment.canary.windows:
            return None
        (canary,), present = scores[Arm.CANARY], mean(scores[Arm.PRESENT])
        throughput, itl = (round(one - other, 6) for one, other in zip(canary, present, strict=True))
        return Gain(round(sum(window.sums.busy_s for window in own), 3), throughput, itl)
