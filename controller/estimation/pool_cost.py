"""The memory of the steps that one pool's engines measured, and the cost fitted to it (`step_cost`).

The memory is a table of means, one for each cell of like steps that the engines count; steps that caught up have cells
of their own. In the fit a cell's weight saturates with its steps. Beyond `cells_limit` cells the least recently visited
ones are dropped.

s, the factor on all of T, is the machine's slowdown factor (`slowdown`). T is fitted to the cells' seconds divided by
the slowdown factors of their times. The factors are then estimated again from the residuals of T, over the cells that
were visited last, each in two parts (`cell_memory`). A common factor of T and of all slowdown factors cannot be
identified, so the level of the last snapshot is kept. At a new load, cells with similar content determine the present
factor; old cells keep their relation to the others when the factor changes.

A decode at K = 0 leaves a row for the drafter, which is caught up only if the request is drafted for again. With Q the
share of the decodes at K > 0, the probability of that is assumed to be proportional to Q. So such a decode costs
left_s Q seconds, whenever they are spent, with

    left_s = sum over steps that caught up of (c6 + c7 R) s / sum over snapshots of Q (decodes at K = 0)

where both sums fade at the same rate. A charge independent of Q would add the cost of mixed K to K = 0 for all, and so
keep it out of force. Snapshots with Q below `_LEAST_DRAFTED` are left out: their catch-up is for probes, which have a
budget of their own at every K, and dividing by so small a Q would make every mixed K seem expensive.

A snapshot with an error above `pause_jump` is set aside; when the next one has a similar error, it is accepted. So a
pause of some steps is not taken for a slowdown.

The table of a new engine covers its whole life. For the slowdown factor it counts as measured long ago, and it fills
only cells that are not known yet.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from specpilot.controller.estimation.cell_memory import CellMemory, Measured
from specpilot.controller.estimation.observation import Cell, CellSums, Evidence
from specpilot.controller.estimation.slowdown import slowdowns
from specpilot.controller.estimation.step_cost import StepCost, fit_cells
from specpilot.controller.tuning import Tuning
from specpilot.policy.graphs import Graphs

Vector = NDArray[np.float64]
_HISTORY_STEPS = 50.0
_LEAST_DRAFTED = 0.05


class PoolCost:
    """The memory of one pool's steps."""

    def __init__(self, tuning: Tuning | None = None) -> None:
        self._tuning = tuning or Tuning()
        self._cells: dict[Cell, CellMemory] = {}
        self._traffic_s = 0.0
        self._log_slowdown = 0.0  # logarithm of the slowdown factor
        self._off_by = 0.0  # logarithmic error of the snapshot that was set aside
        self._left_rows = 0.0
        self._left_s = 0.0
        self._fit: StepCost | None = None
        self._is_fresh = True
        self._graphs: Graphs | None = None
        self.surprise_ratio: float | None = None
        """Recent relative error of the predictions before learning (median of a snapshot, smoothed)."""

    def learn(self, evidence: Evidence, elapsed_s: float, *, is_history: bool = False) -> None:
        """Add the steps of one snapshot; `is_history`: they are the table of a new engine."""
        cells = _cells_of(evidence)
        if not cells:
            return
        self._traffic_s += elapsed_s
        if not is_history and not self._is_believed([item for item in cells if not item[0].catches_up]):
            return
        at = self._traffic_s - (self._tuning.slowdown_time_s if is_history else 0.0)
        for cell, mean, sums in cells:
            steps = min(sums.steps, _HISTORY_STEPS) if is_history else sums.steps
            newer = Measured(steps, mean, math.log(sums.seconds / sums.steps), at, self._log_slowdown)
            if cell not in self._cells:
                self._cells[cell] = CellMemory(newer, self._traffic_s)
            elif not is_history:
                self._cells[cell].take(newer, self._tuning)
        if len(self._cells) > self._tuning.cells_limit:
            newest = sorted(self._cells.items(), key=lambda item: -item[1].seen_s)
            self._cells = dict(newest[: self._tuning.cells_limit])
        self._is_fresh = False
        self._learn_left(evidence, is_history=is_history)

    def use(self, graphs: Graphs | None) -> None:
        """Set the CUDA graphs of the pool's engines; `None` for none, or unknown ones."""
        if graphs != self._graphs:
            self._graphs = graphs
            self._is_fresh = not self._cells

    def fit(self) -> StepCost | None:
        """Return the cost fitted to all cells; `None` before the first step."""
        if not self._is_fresh:
            self._fit = self._fitted()
            self._is_fresh = True
        if self._fit is None:
            return None
        left_s = self._left_s / self._left_rows if self._left_rows >= 1 else 0.0
        return replace(self._fit, pace_ratio=math.exp(self._log_slowdown), left_s=left_s)

    def _fitted(self) -> StepCost:
        """Fit T to the cells' seconds at a slowdown factor of 1, then estimate the factors from the residuals of T."""
        tuning = self._tuning
        memories = sorted(self._cells.values(), key=lambda memory: -memory.seen_s)
        cells = [memory.without_slowdown() for memory in memories]
        steps = np.array([cell.steps for cell in cells])
        fit = fit_cells(
            np.array([cell.mean for cell in cells]),
            np.exp([cell.took for cell in cells]),
            steps / (steps + tuning.cell_saturation_steps),
            self._graphs,
        )
        parts = [part for memory in memories for part in memory.parts][: tuning.slowdown_parts]
        means = np.array([part.mean for part in parts])
        took = np.array([part.took for part in parts])
        steps = np.array([part.steps for part in parts])
        ages = self._traffic_s - np.array([part.at for part in parts])
        found = slowdowns(means, took - np.log(fit.cell_s(means)), steps, ages, tuning)
        if (ages > 0).any():  # a common factor of T and all slowdowns is not identified: keep its level
            before = np.array([part.log_slowdown for part in parts])
            found -= np.median((found[:-1] - before)[ages > 0])
        for part, log_slowdown in zip(parts, found[:-1].tolist(), strict=True):
            part.log_slowdown = log_slowdown
        self._log_slowdown = float(found[-1])
        return fit

    def is_measured(self, k: int, decodes: float | None = None) -> bool:
        """Return whether steps like those of a uniform K of `k` were measured, at any load or near `decodes`.

        Steps are alike if both are without the drafter, or if both have about as many slots for each decode.
        """
        steps = 0.0
        for memory in self._cells.values():
            n, _, slots = memory.newest.mean[:3]
            if n >= 1 and (decodes is None or is_near(n, decodes, self._tuning.near_ratio)):
                alike = slots == 0 if k == 0 else slots > 0 and is_near(slots / n, k, self._tuning.near_ratio)
                steps += sum(part.steps for part in memory.parts) if alike else 0.0
        return steps >= self._tuning.trial_steps

    def _is_believed(self, cells: Sequence[tuple[Cell, Vector, CellSums]]) -> bool:
        """Record the error of a snapshot's predictions; return whether the snapshot is accepted."""
        fit = self.fit()
        if fit is None or not cells:
            return True
        means = np.array([mean for _, mean, _ in cells])
        steps = [sums.steps for _, _, sums in cells]
        seconds = np.array([sums.seconds for _, _, sums in cells]) / steps
        predicted = fit.cell_s(means)
        surprise = _weighted_median([*zip(np.abs(predicted / seconds - 1).tolist(), steps, strict=True)])
        self.surprise_ratio = surprise if self.surprise_ratio is None else 0.8 * self.surprise_ratio + 0.2 * surprise
        off_by = _weighted_median([*zip(np.log(seconds / predicted).tolist(), steps, strict=True)])
        before, self._off_by = self._off_by, 0.0
        if abs(off_by) <= self._tuning.pause_jump or before * off_by > 0:
            return True
        self._off_by = off_by
        return False

    def _learn_left(self, evidence: Evidence, *, is_history: bool) -> None:
        fit = self.fit()
        if is_history or fit is None or evidence.drafted_ratio < _LEAST_DRAFTED:
            return
        kept = 0.5 ** (evidence.step_seconds / self._tuning.left_half_life_s)
        caught_up = evidence.catch_ups.values()
        spent = sum(sums.steps * fit.read_s + sums.read * fit.per_read_s for sums in caught_up)
        self._left_rows = self._left_rows * kept + evidence.undrafted * evidence.drafted_ratio
        self._left_s = self._left_s * kept + fit.pace_ratio * spent


def _cells_of(evidence: Evidence) -> list[tuple[Cell, Vector, CellSums]]:
    tables = (evidence.cells, evidence.catch_ups)
    return [(cell, _mean(sums), sums) for table in tables for cell, sums in table.items()]


def _mean(sums: CellSums) -> Vector:
    """Return the mean content of a cell's steps: `step_cost.COLUMNS`."""
    verified = max(sums.verified, sums.decodes)
    return np.array([sums.decodes, verified, sums.slots, sums.context, sums.prefill, sums.read]) / sums.steps


def is_near(value: float, wanted: float, factor: float) -> bool:
    """Return whether two loads, or widths, differ by at most `factor`."""
    return max(value, wanted) <= factor * min(value, wanted)


def _weighted_median(items: list[tuple[float, float]]) -> float:
    ordered = sorted(items)
    half = sum(weight for _, weight in ordered) / 2
    for value, weight in ordered:
        half -= weight
        if half <= 0:
            return value
    return ordered[-1][0]
