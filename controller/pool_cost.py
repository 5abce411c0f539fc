"""What is remembered of the steps that one pool's engines measured, and the cost that follows from it (`step_cost`).

The memory is a table of means, one for each cell of like steps that the engines count, those that caught up apart. In
the fit every cell has a weight that saturates with its steps and halves every `cost_half_life_s` of traffic after
its last visit, down to a floor.

`lacking` names the depths that were never seen: their cost is unknown, and the caller explores or holds instead of
believing an extrapolation. `is_measured` tells measured from extrapolated at a given load.

s, the factor on all of T, follows drift that strikes all K alike (a noisy neighbour, longer contexts); the means are
kept with it taken out. It moves with the ratio of each look's measurements to their own cells' means, so that the cells
of a K that was not tried lately keep their relation to those that were. It moves gently. A look that is off by more
than 15 % is set aside; when the next one is off the same way, s moves there at once. A pause in a few steps is no
drift, and cells measured under a wrong s would stay wrong for as long as they are remembered.

What is common to the cells of a look is for s: of it each cell takes in only by how much it was off more than they were
on average. Besides, all of them move a fifth as far as s did, so that a wrong relation to the cells that were not
visited is mended in time. Cells that took in all of the look by an average of their own would never come to rest: no s
satisfies two averages of the same noise, so it would climb for ever while the cells that are visited sink.

Limits: one look may move a cell's mean by at most a factor of two, so that a pause of some seconds in one step does
not. Looks of fewer than ten steps say nothing of s.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, TypeVar

import numpy as np

from controller.observation import CatchUpCell, Cell, CellSums
from controller.step_cost import StepCost, WeightedCells, fit_cells
from controller.tuning import Tuning

_Key = TypeVar("_Key", Cell, CatchUpCell)
_SATURATION_STEPS = 20.0
_ESTABLISHED_STEPS = 50.0
_DRIFT_GAIN = 0.3
_DRIFT_JUMP = 0.15
_DRIFT_STEPS = 10.0
_FOLLOW = 0.2
_HISTORY_STEPS = 50.0
_LARGEST_MOVE = 2.0
_NEAR_DECODES = 1.5
_NEAR_DEPTH = 1.35
_FEW_PROBES = 3.0
_NO_CATCH_UPS: Mapping[CatchUpCell, CellSums] = MappingProxyType({})


class ProbeCost(NamedTuple):
    """What a probe takes where K is 0 for all: seconds beyond those of the two steps it is in, and who is probed."""

    extra_s: float
    probed: float


class _Mean(NamedTuple):
    decodes: float
    verified: float
    seconds: float
    read: float


@dataclass(slots=True)
class _CellMemory:
    steps: float
    decodes: float
    verified: float
    seconds: float  # with the drift taken out
    seen_s: float
    read: float = 0.0

    def take(self, steps: float, mean: _Mean, seconds: float, memory_steps: float) -> None:
        """Move towards the `mean` of so many new steps, of `seconds` each without the drift."""
        ratio = min(max(seconds / self.seconds, 1 / _LARGEST_MOVE), _LARGEST_MOVE)
        kept = self.steps * float(np.exp(-steps / memory_steps))
        share = steps / (kept + steps)
        self.steps = kept + steps
        self.decodes += share * (mean.decodes - self.decodes)
        self.verified += share * (mean.verified - self.verified)
        self.read += share * (mean.read - self.read)
        self.seconds *= ratio**share


class PoolCost:
    """What is remembered of one pool's steps."""

    def __init__(self, tuning: Tuning | None = None) -> None:
        self._tuning = tuning or Tuning()
        self._cells: dict[Cell, _CellMemory] = {}
        self._catch_ups: dict[CatchUpCell, _CellMemory] = {}
        self._traffic_s = 0.0
        self._drift = 1.0
        self._off_by = 0.0  # logarithm of how far the look that was set aside was off
        self._moved = 0.0  # logarithm of how far the newest look gently moved the drift
        self._fit: StepCost | None = None
        self._is_fresh = False
        self.surprise_ratio: float | None = None
        """Recent relative error of predictions made before the steps were taken in (median of a look, smoothed)."""

    @property
    def is_in_doubt(self) -> bool:
        """Whether the newest look was set aside, until the next one tells."""
        return self._off_by != 0.0

    def learn(
        self,
        cells: Mapping[Cell, CellSums],
        elapsed_s: float,
        *,
        catch_ups: Mapping[CatchUpCell, CellSums] = _NO_CATCH_UPS,
        is_history: bool = False,
    ) -> None:
        """Take in the steps of the last `elapsed_s` seconds, those that caught up apart.

        `is_history`: of the engine's whole life.
        """
        if not cells or (self._tuning.freeze_cost and self._fit is not None and not self.lacking(_deepest(cells))):
            return
        self._traffic_s += elapsed_s
        before, off = self._drift, {} if is_history else self._off(cells)
        if not is_history and not self._follow_drift(cells, off):
            return
        common = before * float(np.exp(_weighted_mean([(by, cells[cell].steps) for cell, by in off.items()])))
        self._remember(self._cells, cells, dict.fromkeys(off, common), is_history=is_history)
        self._remember(self._catch_ups, catch_ups, {}, is_history=is_history)
        for cell in off:
            self._cells[cell].seconds *= float(np.exp(_FOLLOW * self._moved))
        self._is_fresh = False

    def _remember(
        self,
        memories: dict[_Key, _CellMemory],
        table: Mapping[_Key, CellSums],
        common: Mapping[_Key, float],
        *,
        is_history: bool,
    ) -> None:
        """Take `table` in; `common` is the factor that does not belong to a cell, where it is not the drift."""
        for cell, sums in table.items():
            steps, mean = min(sums.steps, _HISTORY_STEPS) if is_history else sums.steps, _mean(sums)
            settled = mean.seconds / common.get(cell, self._drift)
            known = memories.get(cell)
            if known is None:
                memories[cell] = _CellMemory(steps, mean.decodes, mean.verified, settled, self._traffic_s, mean.read)
            else:
                known.take(steps, mean, settled, self._tuning.cost_memory_steps)
                known.seen_s = self._traffic_s

    def lacking(self, k_max: int) -> tuple[int, ...]:
        """Depths K that must be tried, of each of three bands one, before the cost is known at all.

        The bands are no drafting, shallow and deep: with a point in each, T is interpolated between them.
        """
        bands = {0: (0, 0)}
        if k_max > 0:
            bands[k_max] = (max(1, -(-2 * k_max // 3)), k_max)
        if k_max > 2:  # noqa: PLR2004 - two depths have no middle
            bands[max(1, k_max // 3)] = (1, max(1, k_max // 3))
        return tuple(
            k
            for k, (low, high) in bands.items()
            if sum(memory.steps for cell, memory in self._cells.items() if low <= cell.width <= high)
            < self._tuning.cost_band_steps
        )

    def is_measured(self, decodes: float, k: int) -> bool:
        """Whether steps like those of `decodes` requests at a uniform K of `k` were measured, or only extrapolated.

        A measurement counts for `explore_again_s` of traffic.
        """
        steps = sum(
            memory.steps
            for cell, memory in self._cells.items()
            if (cell.width > 0) == (k > 0)
            and self._traffic_s - memory.seen_s <= self._tuning.explore_again_s
            and _is_near(memory.decodes, decodes, _NEAR_DECODES)
            and _is_near(memory.verified / memory.decodes, 1.0 + k, _NEAR_DEPTH)
        )
        return steps >= self._tuning.cost_band_steps

    def probe_at_off(self, decodes: float, k_max: int) -> ProbeCost | None:
        """Return what probes at K = 0 took at about so many running decodes; `None` before a few of them."""
        fit, octave = self.fit(), 1 << (max(1, round(decodes)).bit_length() - 1)
        drafting, verifying = (self._catch_ups.get(CatchUpCell(octave, width)) for width in (k_max, 0))
        if fit is None or drafting is None or verifying is None:
            return None
        if min(drafting.steps, verifying.steps) < _FEW_PROBES:
            return None
        extra_s = sum(
            self._drift * memory.seconds - float(fit.step_s(memory.decodes, memory.decodes, 0.0))
            for memory in (drafting, verifying)
        )
        probed = (verifying.verified - verifying.decodes) / k_max
        return ProbeCost(max(extra_s, 0.0), max(probed, 0.0))

    def fit(self) -> StepCost | None:
        """Return the cost by all that is remembered; `None` before the first step."""
        if not self._is_fresh and self._cells:
            self._fit = fit_cells(self._weighted_cells(), self._drift)
            self._is_fresh = True
        return self._fit

    def _weighted_cells(self) -> WeightedCells:
        widths = [cell.width for cell in self._cells] + [cell.width for cell in self._catch_ups]
        memories = (*self._cells.values(), *self._catch_ups.values())
        steps = np.array([memory.steps for memory in memories])
        age = np.array([self._traffic_s - memory.seen_s for memory in memories])
        fading = np.maximum(0.5 ** (age / self._tuning.cost_half_life_s), self._tuning.cost_floor_ratio)
        return WeightedCells(
            decodes=np.array([memory.decodes for memory in memories]),
            verified=np.array([memory.verified for memory in memories]),
            width=np.array(widths, dtype=np.float64),
            read=np.array([memory.read for memory in memories]),
            seconds=np.array([memory.seconds for memory in memories]),
            weight=steps / (steps + _SATURATION_STEPS) * fading,
        )

    def _off(self, cells: Mapping[Cell, CellSums]) -> dict[Cell, float]:
        """By how much each established cell of a look was off its memory: logarithms. Also notes the surprise."""
        fit = self.fit()
        if fit is None:
            return {}
        off: dict[Cell, float] = {}
        surprises: list[tuple[float, float]] = []
        for cell, sums in cells.items():
            decodes, verified, seconds, _ = _mean(sums)
            predicted = float(fit.step_s(decodes, verified, cell.width))
            surprises.append((abs(predicted / seconds - 1), sums.steps))
            known = self._cells.get(cell)
            if known is not None and known.steps >= _ESTABLISHED_STEPS:
                shape = predicted / float(fit.step_s(known.decodes, known.verified, cell.width))
                off[cell] = float(np.log(seconds / (known.seconds * self._drift * shape)))
        surprise = _weighted_median(surprises)
        self.surprise_ratio = surprise if self.surprise_ratio is None else 0.8 * self.surprise_ratio + 0.2 * surprise
        return off

    def _follow_drift(self, cells: Mapping[Cell, CellSums], off: Mapping[Cell, float]) -> bool:
        """Return whether the look can be believed: it is not off by much, or the one before was off the same way."""
        self._moved = 0.0
        if sum(cells[cell].steps for cell in off) < _DRIFT_STEPS or self._tuning.freeze_cost:
            return True
        off_by = _weighted_median([(by, cells[cell].steps) for cell, by in off.items()])
        before, self._off_by = self._off_by, 0.0
        if abs(off_by) <= _DRIFT_JUMP:
            self._moved = _DRIFT_GAIN * off_by
            self._drift *= float(np.exp(self._moved))
            return True
        if before * off_by > 0:
            self._drift *= float(np.exp(min(before, off_by, key=abs)))
            return True
        self._off_by = off_by
        return False


def _deepest(cells: Mapping[Cell, CellSums]) -> int:
    return max(cell.width for cell in cells)


def _is_near(value: float, wanted: float, factor: float) -> bool:
    return max(value, wanted) <= factor * min(value, wanted)


def _mean(sums: CellSums) -> _Mean:
    decodes = max(sums.decodes / sums.steps, 1.0)
    return _Mean(decodes, max(sums.verified / sums.steps, decodes), sums.seconds / sums.steps, sums.read / sums.steps)


def _weighted_mean(items: list[tuple[float, float]]) -> float:
    return sum(value * weight for value, weight in items) / sum(weight for _, weight in items) if items else 0.0


def _weighted_median(items: list[tuple[float, float]]) -> float:
    ordered = sorted(items)
    half = sum(weight for _, weight in ordered) / 2
    for value, weight in ordered:
        half -= weight
        if half <= 0:
            return value
    return ordered[-1][0]
