"""What is remembered of the steps that one pool's engines measured, and the cost that follows from it (`step_cost`).

The memory is a table of means, one for each cell of like steps that the engines count, those that caught up apart. In
the fit a cell's weight saturates with its steps. Where cells are more than `cells_limit`, those that were not visited
for longest go.

s, the factor on all of T, is the machine's pace (`pace`). T is fitted to what the cells took with the paces of their
times taken out. The paces are then found anew by what T leaves unexplained, of the cells that were visited last, each
in two parts (`cell_memory`). Measurements tell T and the paces of all times but for a common factor, so that one stays
as it was at the look before. A new load shows the present pace by the cells that are like its own; old cells keep their
relation to the others when the pace changes.

What a decode at K = 0 leaves for the drafter is caught up if its request is drafted for again, and never where nobody
is. With Q the share of the decodes at K > 0, the chance of that is taken to be proportional to Q, so that such a decode
costs left_s Q seconds, whenever they are spent, and

    left_s = sum over steps that caught up of (c6 + c7 R) s / sum over looks of Q (decodes at K = 0)

both sums fading alike. A charge that did not depend on Q would keep K = 0 for all out of force for what mixed K costs.
Looks with Q below `_LEAST_DRAFTED` are left out: what is caught up there is for probes, which have a budget of their
own whatever K is, and by so small a Q it would seem to make every mixed K expensive.

A look that is off by more than `pause_jump` is set aside, and when the next one is off the same way it is believed: a
pause in some steps is no pace.

The table of an engine that was not seen before is of all its times: as for the pace, it counts as one of long ago, and
tells of cells only that are not known.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from specpilot.controller.estimation.cell_memory import CellMemory, Measured
from specpilot.controller.estimation.observation import Cell, CellSums, Evidence
from specpilot.controller.estimation.pace import paces
from specpilot.controller.estimation.step_cost import StepCost, fit_cells
from specpilot.controller.tuning import Tuning
from specpilot.policy.graphs import Graphs

Vector = NDArray[np.float64]
_HISTORY_STEPS = 50.0
_LEAST_DRAFTED = 0.05


class PoolCost:
    """What is remembered of one pool's steps."""

    def __init__(self, tuning: Tuning | None = None) -> None:
        self._tuning = tuning or Tuning()
        self._cells: dict[Cell, CellMemory] = {}
        self._traffic_s = 0.0
        self._pace = 0.0  # its logarithm
        self._off_by = 0.0  # logarithm of how far the look that was set aside was off
        self._left_rows = 0.0
        self._left_s = 0.0
        self._fit: StepCost | None = None
        self._is_fresh = True
        self._graphs: Graphs | None = None
        self.surprise_ratio: float | None = None
        """Recent relative error of predictions made before the steps were taken in (median of a look, smoothed)."""

    def learn(self, evidence: Evidence, elapsed_s: float, *, is_history: bool = False) -> None:
        """Take in the steps of one look; `is_history` if they are the table of an engine that was not seen before."""
        looked = _looked(evidence)
        if not looked:
            return
        self._traffic_s += elapsed_s
        if not is_history and not self._is_believed([item for item in looked if not item[0].catches_up]):
            return
        at = self._traffic_s - (self._tuning.pace_time_s if is_history else 0.0)
        for cell, mean, sums in looked:
            steps = min(sums.steps, _HISTORY_STEPS) if is_history else sums.steps
            newer = Measured(steps, mean, math.log(sums.seconds / sums.steps), at, self._pace)
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
        """Note which CUDA graphs the pool's engines have; `None` for none, or not known."""
        if graphs != self._graphs:
            self._graphs = graphs
            self._is_fresh = not self._cells

    def fit(self) -> StepCost | None:
        """Return the cost by all that is remembered; `None` before the first step."""
        if not self._is_fresh:
            self._fit = self._fitted()
            self._is_fresh = True
        if self._fit is None:
            return None
        left_s = self._left_s / self._left_rows if self._left_rows >= 1 else 0.0
        return replace(self._fit, pace_ratio=math.exp(self._pace), left_s=left_s)

    def _fitted(self) -> StepCost:
        """Fit T to what the cells took at a pace of 1, then find the paces anew by what T leaves unexplained."""
        tuning = self._tuning
        memories = sorted(self._cells.values(), key=lambda memory: -memory.seen_s)
        cells = [memory.at_pace_1() for memory in memories]
        steps = np.array([cell.steps for cell in cells])
        fit = fit_cells(
            np.array([cell.mean for cell in cells]),
            np.exp([cell.took for cell in cells]),
            steps / (steps + tuning.cell_saturation_steps),
            self._graphs,
        )
        parts = [part for memory in memories for part in memory.parts][: tuning.pace_parts]
        means = np.array([part.mean for part in parts])
        took = np.array([part.took for part in parts])
        steps = np.array([part.steps for part in parts])
        ages = self._traffic_s - np.array([part.at for part in parts])
        found = paces(means, took - np.log(fit.cell_s(means)), steps, ages, tuning)
        if (ages > 0).any():  # what T and all paces could exchange without a difference stays where it is
            before = np.array([part.pace for part in parts])
            found -= np.median((found[:-1] - before)[ages > 0])
        for part, pace in zip(parts, found[:-1].tolist(), strict=True):
            part.pace = pace
        self._pace = float(found[-1])
        return fit

    def is_measured(self, k: int, decodes: float | None = None) -> bool:
        """Whether steps like those of a uniform K of `k` were measured: at all, or at about so many `decodes`.

        Alike are steps without the drafter, or steps with about as many slots for each decode.
        """
        steps = 0.0
        for memory in self._cells.values():
            n, _, slots = memory.newest.mean[:3]
            if n >= 1 and (decodes is None or is_near(n, decodes, self._tuning.near_ratio)):
                alike = slots == 0 if k == 0 else slots > 0 and is_near(slots / n, k, self._tuning.near_ratio)
                steps += sum(part.steps for part in memory.parts) if alike else 0.0
        return steps >= self._tuning.trial_steps

    def _is_believed(self, looked: Sequence[tuple[Cell, Vector, CellSums]]) -> bool:
        """Note how far off a look's steps are from what was predicted; return whether they are no mere pause."""
        fit = self.fit()
        if fit is None or not looked:
            return True
        means = np.array([mean for _, mean, _ in looked])
        steps = [sums.steps for _, _, sums in looked]
        seconds = np.array([sums.seconds for _, _, sums in looked]) / steps
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


def _looked(evidence: Evidence) -> list[tuple[Cell, Vector, CellSums]]:
    tables = (evidence.cells, evidence.catch_ups)
    return [(cell, _mean(sums), sums) for table in tables for cell, sums in table.items()]


def _mean(sums: CellSums) -> Vector:
    """What was in a step of a cell on average: `step_cost.COLUMNS`."""
    verified = max(sums.verified, sums.decodes)
    return np.array([sums.decodes, verified, sums.slots, sums.context, sums.prefill, sums.read]) / sums.steps


def is_near(value: float, wanted: float, factor: float) -> bool:
    """Whether two loads, or widths, differ by at most `factor`."""
    return max(value, wanted) <= factor * min(value, wanted)


def _weighted_median(items: list[tuple[float, float]]) -> float:
    ordered = sorted(items)
    half = sum(weight for _, weight in ordered) / 2
    for value, weight in ordered:
        half -= weight
        if half <= 0:
            return value
    return ordered[-1][0]
