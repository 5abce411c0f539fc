"""Measures a canary's blocks: from what the engines counted to the gain of each finished block.

A window's throughput is its tokens per busy second (seconds of steps, without what prefilling took in them), as the
hold-out measures it, all classes alike; its inter-token latency is that of a mean token, sum(n_i T_i) / tokens over its
steps. In a closed loop, where n is given, the two say the same; where requests arrive by themselves, a faster policy
lets n fall and shows in the latency alone. Where a block has several windows of the present policy, the mean of their
logarithms counts.

What a window's steps at K = 0 leave for the drafter to catch up counts as time of this window, at the pool's measured
seconds per row: whoever leaves it pays, also when it is spent in the other policy's turn.

What does not count:

- the time until a schedule has arrived: looks that began `DELIVERED_S` or more after the window's first tick count,
  and windows with fewer than `FEWEST_STEPS` steps make their block `no_traffic`;
- a block that this controller did not lead from beginning to end, or in which it paused or lost Redis for more than
  `GAP_S` seconds, or its clock was set back: nobody knows whose schedule was in force (`interrupted`).
"""

import math
from collections import Counter
from dataclasses import dataclass, field, replace

from specpilot.controller.estimation.observation import Window
from specpilot.controller.experiments.canary import Turn, turn
from specpilot.policy.canary import Arm, Block, Experiment, Gain, Lost

DELIVERED_S = 1.0
GAP_S = 5.0
FEWEST_STEPS = 20.0
_ROUNDING_S = 0.01


@dataclass(slots=True)
class _Window:
    """Sums of one window of one pool; what happened until `seen_at` is in, or does not count."""

    arm: Arm
    seen_at: float
    steps: float = 0.0
    busy_s: float = 0.0
    decode_s: float = 0.0
    tokens: float = 0.0

    def take(self, found: Window) -> None:
        evidence = found.evidence
        self.steps += evidence.steps
        self.busy_s += found.busy_s
        self.tokens += found.tokens
        seconds = sum(cell.seconds for cell in evidence.cells.values())
        for cell in evidence.cells.values():
            share = cell.seconds / seconds * found.busy_s
            self.decode_s += share * cell.decodes / cell.steps

    @property
    def logs(self) -> tuple[float, float] | None:
        """Logarithms of throughput and latency; `None` when too little ran."""
        if self.steps < FEWEST_STEPS or min(self.tokens, self.busy_s, self.decode_s) <= 0:
            return None
        return math.log(self.tokens / self.busy_s), math.log(self.decode_s / self.tokens)


@dataclass(slots=True)
class BlockSums:
    """The running block of one experiment, as this controller saw it."""

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
        if self.last_at is not None and not 0 <= at - self.last_at <= GAP_S:
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
            self.is_interrupted = now.block_age_s > GAP_S
        blocks = tuple(item for item in self.closed if isinstance(item, Block))
        lost = [item for item in self.closed if isinstance(item, Lost)]
        if not self.closed:
            return experiment
        return replace(
            experiment,
            blocks=(*experiment.blocks, *blocks),
            lost=dict(Counter({**experiment.lost}) + Counter(lost)),
        )

    def take(self, pool: str, now: Turn, at: float, window: Window | None) -> None:
        """Take in the newest look at `pool`, its time in Unix seconds."""
        own = self.windows.setdefault((pool, now.slot), _Window(now.arm, at + DELIVERED_S))
        # Where the source is slow the newest look is one that was taken before, or one from another window.
        if window is None or window.at - window.elapsed_s < own.seen_at - _ROUNDING_S:
            return
        own.seen_at = window.at
        own.take(window)

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
        logs = {arm: [window.logs for window in own if window.arm is arm] for arm in Arm}
        known = {arm: [item for item in found if item is not None] for arm, found in logs.items()}
        if sum(len(found) for found in known.values()) < experiment.canary.windows:
            return None
        (canary,), present = known[Arm.CANARY], known[Arm.PRESENT]
        throughput = canary[0] - sum(item[0] for item in present) / len(present)
        itl = sum(item[1] for item in present) / len(present) - canary[1]
        return Gain(round(sum(window.busy_s for window in own), 3), round(throughput, 6), round(itl, 6))
