"""What is remembered of the steps of one cell, in two parts: the newest ones, and all before.

The machine's pace is not the same at all times (`pace`). The newest steps, of `cell_span_s` at most, are of one time.
Those of before are told as at the time of the first of them: what joins them later is taken back to the pace of that
time. So the two show how the pace has changed between, however the cost of such steps is explained.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from specpilot.controller.tuning import Tuning

Vector = NDArray[np.float64]


@dataclass(slots=True)
class Measured:
    """Steps of one cell at about one time: how many count, the mean of what was in them, and when they ran.

    `took` is the logarithm of their seconds, `pace` that of the machine's pace at the time.
    """

    steps: float
    mean: Vector  # `step_cost.COLUMNS`
    took: float
    at: float
    pace: float

    def take(self, newer: "Measured", kept: float) -> None:
        """Take in `newer` steps; `kept` of those of before count on."""
        share = newer.steps / (kept + newer.steps)
        self.took += share * (newer.took - self.took)
        self.mean = self.mean + share * (newer.mean - self.mean)
        self.steps, self.at, self.pace = kept + newer.steps, newer.at, newer.pace


class CellMemory:
    """What is remembered of one cell: `newest` steps, those `before`, and when it was visited last, `seen_s`."""

    def __init__(self, newest: Measured, seen_s: float) -> None:
        self.newest = newest
        self.before: Measured | None = None
        self.seen_s = seen_s
        self._begun_at = newest.at

    @property
    def parts(self) -> list[Measured]:
        """The newest, and where there is more, what was before."""
        return [self.newest] if self.before is None else [self.newest, self.before]

    def at_pace_1(self) -> Measured:
        """Return the mean of all that is remembered, with the paces taken out."""
        whole = replace(self.newest, took=self.newest.took - self.newest.pace, pace=0.0)
        if self.before is not None:
            before = self.before
            share = before.steps / (before.steps + whole.steps)
            whole.took += share * (before.took - before.pace - whole.took)
            whole.mean = whole.mean + share * (before.mean - whole.mean)
            whole.steps += before.steps
        return whole

    def take(self, newer: Measured, tuning: Tuning) -> None:
        """Take in the steps of a look."""
        self.seen_s = newer.at
        if newer.at - self._begun_at < tuning.cell_span_s:
            self.newest.take(newer, self.newest.steps)
            return
        ended, before = self.newest, self.before
        if before is None:
            self.before = ended
        else:
            ended.took += before.pace - ended.pace
            ended.at, ended.pace = before.at, before.pace
            before.take(ended, before.steps * math.exp(-ended.steps / tuning.cell_memory_steps))
        self.newest, self._begun_at = newer, newer.at
