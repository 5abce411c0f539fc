"""The memory of the steps of one cell, in two parts: the newest steps, and all older ones.

The machine's slowdown factor varies over time (`slowdown`). The newest steps span `cell_span_s` at most, so they have
one slowdown factor. The older ones are corrected to the factor at the time of the first of them. So the ratio of the
two parts is the change of the slowdown factor between them, whatever the cost model.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from specpilot.controller.tuning import Tuning

Vector = NDArray[np.float64]


@dataclass(slots=True)
class Measured:
    """Steps of one cell at about one time: their effective number, their mean content, and their time.

    `took` is the logarithm of their seconds, `log_slowdown` that of the slowdown factor at the time.
    """

    steps: float
    mean: Vector  # `step_cost.COLUMNS`
    took: float
    at: float
    log_slowdown: float

    def take(self, newer: "Measured", kept: float) -> None:
        """Add `newer` steps; `kept` of the older ones still count."""
        share = newer.steps / (kept + newer.steps)
        self.took += share * (newer.took - self.took)
        self.mean = self.mean + share * (newer.mean - self.mean)
        self.steps, self.at, self.log_slowdown = kept + newer.steps, newer.at, newer.log_slowdown


class CellMemory:
    """One cell: the `newest` steps, those `before`, and the time of the last visit, `seen_s`."""

    def __init__(self, newest: Measured, seen_s: float) -> None:
        self.newest = newest
        self.before: Measured | None = None
        self.seen_s = seen_s
        self._begun_at = newest.at

    @property
    def parts(self) -> list[Measured]:
        """The newest part, and the older one if there is one."""
        return [self.newest] if self.before is None else [self.newest, self.before]

    def without_slowdown(self) -> Measured:
        """Return the mean of both parts, divided by their slowdown factors."""
        whole = replace(self.newest, took=self.newest.took - self.newest.log_slowdown, log_slowdown=0.0)
        if self.before is not None:
            before = self.before
            share = before.steps / (before.steps + whole.steps)
            whole.took += share * (before.took - before.log_slowdown - whole.took)
            whole.mean = whole.mean + share * (before.mean - whole.mean)
            whole.steps += before.steps
        return whole

    def take(self, newer: Measured, tuning: Tuning) -> None:
        """Add the steps of a snapshot."""
        self.seen_s = newer.at
        if newer.at - self._begun_at < tuning.cell_span_s:
            self.newest.take(newer, self.newest.steps)
            return
        ended, before = self.newest, self.before
        if before is None:
            self.before = ended
        else:
            ended.took += before.log_slowdown - ended.log_slowdown
            ended.at, ended.log_slowdown = before.at, before.log_slowdown
            before.take(ended, before.steps * math.exp(-ended.steps / tuning.cell_memory_steps))
        self.newest, self._begun_at = newer, newer.at
