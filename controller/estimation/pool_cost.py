"""What is remembered of the steps that one pool's engines measured, and the cost that follows from it (`step_cost`).

The memory is a table of means, one for each cell of like steps that the engines count, those that caught up apart. In
the fit a cell's weight saturates with its steps and halves every `cell_half_life_s` of traffic after its last visit,
down to a floor. Where cells are more than `cells_limit`, those that were not visited for longest go.

s, the factor on all of T, follows drift that strikes all steps alike (a noisy neighbour); the means are kept with it
taken out. It moves with the ratio of each look's measurements to what was predicted for cells that are known, gently; a
look that is off by more than `drift_jump` is set aside, and when the next one is off the same way, s moves there at
once. So a pause in a few steps is no drift, and the cells of a K that was not tried lately keep their relation to the
others. What is common to the cells of a look is for s; each cell takes in what is left.

What a decode at K = 0 leaves for the drafter is caught up if its request is drafted for again, and never where nobody
is. With Q the share of the decodes at K > 0, the chance of that is taken to be proportional to Q, so that such a decode
costs left_s Q seconds, whenever they are spent, and

    left_s = sum over steps that caught up of (c6 + c7 R) s / sum over looks of Q (decodes at K = 0)

both sums fading alike. A charge that did not depend on Q would keep K = 0 for all out of force for what mixed K costs.
Looks with Q below `_LEAST_DRAFTED` are left out: what is caught up there is for probes, which have a budget of their
own whatever K is, and by so small a Q it would seem to make every mixed K expensive.

Limits: one look may move a cell's mean by at most a factor of two, so that a pause of some seconds in one step does
not. Looks of fewer than ten steps say nothing of s.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from specpilot.controller.estimation.observation import CatchUpCell, Cell, CellSums, Evidence
from specpilot.controller.estimation.step_cost import StepCost, fit_cells
from specpilot.controller.tuning import Tuning
from specpilot.policy.graphs import Graphs

Vector = NDArray[np.float64]
_ESTABLISHED_STEPS = 30.0
_DRIFT_STEPS = 10.0
_HISTORY_STEPS = 50.0
_LARGEST_MOVE = 2.0
_LEAST_DRAFTED = 0.05


@dataclass(slots=True)
class _CellMemory:
    steps: float
    mean: Vector  # `step_cost.COLUMNS`
    seconds: float  # with the drift taken out
    seen_s: float

    def take(self, steps: float, mean: Vector, seconds: float, memory_steps: float) -> None:
        """Move towards the `mean` of so many new steps, of `seconds` each without the drift."""
        ratio = min(max(seconds / self.seconds, 1 / _LARGEST_MOVE), _LARGEST_MOVE)
        kept = self.steps * math.exp(-steps / memory_steps)
        share = steps / (kept + steps)
        self.steps = kept + steps
        self.mean = self.mean + share * (mean - self.mean)
        self.seconds *= ratio**share


class PoolCost:
    """What is remembered of one pool's steps."""

    def __init__(self, tuning: Tuning | None = None) -> None:
        self._tuning = tuning or Tuning()
        self._cells: dict[Cell | CatchUpCell, _CellMemory] = {}
        self._traffic_s = 0.0
        self._drift = 1.0
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
        if not looked or (self._tuning.freeze_cost and self._traffic_s > 30.0 and not is_history):  # noqa: PLR2004
            return
        self._traffic_s += elapsed_s
        is_believed = is_history or self._follow_drift([item for item in looked if isinstance(item[0], Cell)])
        if not is_believed:
            return
        for cell, mean, sums in looked:
            steps = min(sums.steps, _HISTORY_STEPS) if is_history else sums.steps
            settled = sums.seconds / sums.steps / self._drift
            known = self._cells.get(cell)
            if known is None:
                self._cells[cell] = _CellMemory(steps, mean, settled, self._traffic_s)
            else:
                known.take(steps, mean, settled, self._tuning.cell_memory_steps)
                known.seen_s = self._traffic_s
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
            memories = list(self._cells.values())
            steps = np.array([memory.steps for memory in memories])
            age = np.array([self._traffic_s - memory.seen_s for memory in memories])
            fading = np.maximum(0.5 ** (age / self._tuning.cell_half_life_s), self._tuning.cell_floor_ratio)
            self._fit = fit_cells(
                np.array([memory.mean for memory in memories]),
                np.array([memory.seconds for memory in memories]),
                steps / (steps + self._tuning.cell_saturation_steps) * fading,
                self._drift,
                self._graphs,
            )
            self._is_fresh = True
        if self._fit is None:
            return None
        left_s = self._left_s / self._left_rows if self._left_rows >= 1 else 0.0
        return replace(self._fit, drift_ratio=self._drift, left_s=left_s)

    def is_measured(self, k: int, decodes: float | None = None) -> bool:
        """Whether steps like those of a uniform K of `k` were measured: at all, or at about so many `decodes`.

        Alike are steps without the drafter, or steps with about as many slots for each decode.
        """
        steps = 0.0
        for memory in self._cells.values():
            n, _, slots = memory.mean[:3]
            if n >= 1 and (decodes is None or is_near(n, decodes, self._tuning.near_ratio)):
                alike = slots == 0 if k == 0 else slots > 0 and is_near(slots / n, k, self._tuning.near_ratio)
                steps += memory.steps if alike else 0.0
        return steps >= self._tuning.trial_steps

    def _follow_drift(self, looked: Iterable[tuple[Cell | CatchUpCell, Vector, CellSums]]) -> bool:
        """Follow the machine's pace; return whether the look can be believed."""
        fit = self.fit()
        if fit is None:
            return True
        off: list[tuple[float, float]] = []
        surprises: list[tuple[float, float]] = []
        for cell, mean, sums in looked:
            seconds = sums.seconds / sums.steps
            predicted = float(fit.step_s(*mean[:3], context=mean[3], prefill=mean[4]))
            surprises.append((abs(predicted / seconds - 1), sums.steps))
            known = self._cells.get(cell)
            if known is not None and known.steps >= _ESTABLISHED_STEPS:
                then = float(fit.step_s(*known.mean[:3], context=known.mean[3], prefill=known.mean[4]))
                off.append((math.log(seconds / (known.seconds * self._drift * predicted / then)), sums.steps))
        if surprises:
            surprise = _weighted_median(surprises)
            self.surprise_ratio = (
                surprise if self.surprise_ratio is None else 0.8 * self.surprise_ratio + 0.2 * surprise
            )
        if sum(steps for _, steps in off) < _DRIFT_STEPS:
            return True
        off_by = _weighted_median(off)
        before, self._off_by = self._off_by, 0.0
        if abs(off_by) <= self._tuning.drift_jump:
            self._drift *= math.exp(self._tuning.drift_gain_ratio * off_by)
            return True
        if before * off_by > 0:
            self._drift *= math.exp(min(before, off_by, key=abs))
            return True
        self._off_by = off_by
        return False

    def _learn_left(self, evidence: Evidence, *, is_history: bool) -> None:
        fit = self.fit()
        if is_history or fit is None or evidence.drafted_ratio < _LEAST_DRAFTED:
            return
        kept = 0.5 ** (evidence.step_seconds / self._tuning.cell_half_life_s)
        caught_up = evidence.catch_ups.values()
        spent = sum(sums.steps * fit.read_s + sums.read * fit.per_read_s for sums in caught_up)
        self._left_rows = self._left_rows * kept + evidence.undrafted * evidence.drafted_ratio
        self._left_s = self._left_s * kept + fit.drift_ratio * spent


def _looked(evidence: Evidence) -> list[tuple[Cell | CatchUpCell, Vector, CellSums]]:
    plain: list[tuple[Cell | CatchUpCell, Vector, CellSums]] = [
        (cell, _mean(sums), sums) for cell, sums in evidence.cells.items()
    ]
    return [*plain, *((cell, _mean(sums), sums) for cell, sums in evidence.catch_ups.items())]


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
