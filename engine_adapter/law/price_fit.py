"""Fits the prices of a step (`policy.prices`) to the steps of one engine.

Similar steps are averaged in a *cell*, so steps that do not occur now keep their times. A cause that slows all steps in
the same proportion, such as another process on the machine, is the *slowdown factor*: the present time of steps of
well-known cells over the mean time of their cells. Cells hold times divided by this factor, and it returns to 1 by
itself.

Non-negative coefficients are fitted to the cells, with relative errors. The weight of a cell grows with its steps up to
a limit. Two weak penalties make the fit unique. The first is on differences between neighbouring slopes of g, where g
is the time of the target's pass by tokens (`policy.prices`). The second penalty matters if two explanations fit the
data equally well: it then attributes time to the base and to tokens first. This underestimates the cost of a small K,
so the law chooses it and its cost is measured. The opposite error would remain, because a K that seems too expensive is
not chosen.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specpilot.engine_adapter.evidence.meter import StepShape
from specpilot.engine_adapter.law import nnls
from specpilot.policy.graphs import Graphs
from specpilot.policy.prices import EDGES, KNOTS, PARTS, Coefficients, padded

Vector = NDArray[np.float64]
CELL_STEPS = 400
"""Memory of a cell, in steps: a cell is the mean of its steps, and from this number on a moving mean."""

KNOWN_STEPS = 30
"""Steps that a cell must have before its steps change the slowdown factor."""

CELLS = 400
"""Largest number of cells. It bounds the time of a fit: some milliseconds, once a second, on the exporter's thread."""

SLOWDOWN_SHARE = 0.05
"""Share of a step's deviation that is added to the logarithm of the slowdown factor: a memory of 20 steps."""

SLOWDOWN_DECAY = 0.99
"""The logarithm of the slowdown factor is multiplied by this at each step: a memory of 100 steps. So the factor returns
to 1 unless steps of well-known cells are slow. Without it, a cause that slows only some steps, such as a slow host of a
GPU, raises the factor permanently (simulated H200: to 1.9 within 80 s), and loads that did not run at that time then
seem twice as expensive. In that simulation throughput is 5 % higher with this decay. After a lasting slowdown by a
factor f, the factor rises to nearly f ** 0.84 within 100 steps. Then the mean times of the cells absorb the slowdown,
and the factor returns to 1 over some thousands of steps."""

PAUSE = 0.5
"""A step's time is divided by the slowdown factor. If the result is more than 1.65 times the time of a well-known cell,
or less than 1 / 1.65 of it, the step is not averaged into the cell. The constant is the logarithm of 1.65. Most of
these steps contain a pause, which is no cost of the step."""

_FINE_LIMIT, _CELLS_PER_OCTAVE = 8, 4
"""Numbers of decodes or tokens up to the first value have cells of their own. Above it, the second value is the number
of cells per doubling."""
_GRAPHS = PARTS.index("piecewise")
"""Index of the first feature about graphs. Steps that differ in these features are in different cells."""
_HALF_WEIGHT = 20.0
"""Number of steps at which a cell has half of the largest weight in the fit."""
_SMOOTHNESS, _RIDGE = 0.05, 1e-4
"""Weights of the two penalties, relative to a measured step. Both are small, so they matter only if the data do not
decide."""
_RIDGE_WEIGHT = {
    "base": 0.1, "decode": 5.0, "drafter": 5.0, "drafting_decode": 20.0, "slot": 3.0, "prefill": 1.0, "context": 5.0,
    "reads": 1.0, "read": 1.0, "piecewise": 5.0, "graphless": 5.0, "drafter_graphless": 5.0,
}  # fmt: skip
"""The weight of each price in the second penalty. Of two explanations the one with the smaller weights wins."""
_RIDGE_WEIGHTS = np.array([*(_RIDGE_WEIGHT[name] for name in PARTS), *([1.0] * len(KNOTS))])


class _Cell:
    """The mean step of a cell: its `features` (`features_of`), and `seconds` without the slowdown."""

    __slots__ = ("features", "seconds", "steps")

    def __init__(self, features: Sequence[float], seconds: float) -> None:
        self.features, self.seconds, self.steps = list(features), seconds, 1

    def add(self, features: Sequence[float], seconds: float) -> None:
        """Add one step to the mean."""
        self.steps += 1
        share = 1.0 / min(self.steps, CELL_STEPS)
        self.seconds += share * (seconds - self.seconds)
        self.features = [old + share * (new - old) for old, new in zip(self.features, features, strict=True)]


class StepCost:
    """Learns the time of a step (T of `policy.prices`) of one engine with these CUDA `graphs`, `None` without any."""

    def __init__(self, graphs: Graphs | None = None) -> None:
        self._graphs = graphs
        self._cells: dict[tuple[float, ...], _Cell] = {}
        self._log_slowdown = 0.0
        self.steps = 0

    @property
    def slowdown(self) -> float:
        """The present time of a step divided by its usual time."""
        return math.exp(self._log_slowdown)

    def note(self, shape: StepShape, seconds: float, context: int) -> None:
        """Add one step: its seconds, and its context, the total length of its requests' sequences."""
        features = features_of(shape, context, self._graphs)
        tokens, graphs = int(features[-1]), features[_GRAPHS:-1]
        n, slots, prefill, read = shape.decodes, shape.slots, shape.prefill, shape.read
        key = (_rounded(n), _rounded(tokens), _octave(slots), _octave(prefill), _octave(read), *graphs)
        seconds = max(seconds, 1e-6)
        self.steps += 1
        self._log_slowdown *= SLOWDOWN_DECAY
        cell = self._cells.pop(key, None)
        if cell is not None and cell.steps >= KNOWN_STEPS:
            off = math.log(seconds / cell.seconds)
            self._log_slowdown += SLOWDOWN_SHARE * max(-1.0, min(1.0, off - self._log_slowdown))
            if abs(off - self._log_slowdown) > PAUSE:
                self._cells[key] = cell
                return
        seconds /= self.slowdown
        if cell is None:
            cell = _Cell(features, seconds)
        else:
            cell.add(features, seconds)
        self._cells[key] = cell  # at the end: the cell not visited for longest is dropped first
        if len(self._cells) > CELLS:
            del self._cells[next(iter(self._cells))]

    def fit(self) -> Coefficients | None:
        """Return the coefficients that fit the times of the cells best; `None` before the first step."""
        if not self._cells:
            return None
        cells = list(self._cells.values())
        features = np.array([cell.features for cell in cells])
        seconds, steps = np.array([(cell.seconds, cell.steps) for cell in cells]).T
        tokens = features[:, -1:]
        columns = np.hstack([features[:, :-1], np.clip(tokens - KNOTS, 0.0, np.diff(EDGES))])
        size = np.sqrt(steps / (steps + _HALF_WEIGHT))
        penalties = _penalties(columns, float(tokens.max()), float(np.average(seconds, weights=size)))
        rows = np.vstack([columns * (size / seconds)[:, None], penalties])
        target = np.concatenate([size, np.zeros(len(penalties))])
        scale = np.linalg.norm(rows, axis=0)  # columns of one size: the solver's tolerance then suits each
        prices = (nnls.solve(rows / scale, target) / scale).tolist()
        return Coefficients(tuple(prices[: len(PARTS)]), tuple(prices[len(PARTS) :]))


def features_of(shape: StepShape, context: int, graphs: Graphs | None) -> tuple[float, ...]:
    """Return the amount of each of `PARTS` in a step, and the tokens of the target's pass, padding included."""
    n, m, slots, prefill, read, is_uniform = shape
    run = padded(graphs, n, m, slots, prefill, is_uniform=is_uniform)
    drafts = float(slots > 0)
    return (
        1.0, n, drafts, drafts * n, run.slots, prefill, context, float(read > 0), read,
        run.piecewise, run.graphless, run.drafter_graphless, run.tokens,
    )  # fmt: skip


def step_s(coefficients: Coefficients, features: Sequence[float]) -> float:
    """Return the seconds of a step with these features (`features_of`), prefill and catching up included."""
    slopes = np.array(coefficients.slopes)
    pass_s = np.clip(features[-1] - KNOTS, 0.0, np.diff(EDGES))
    return float(np.dot(coefficients.parts, features[:-1]) + slopes @ pass_s)


def _penalties(columns: Vector, most: float, typical_s: float) -> Vector:
    """Return the rows of the penalties: differences of neighbouring slopes of g up to `most` tokens, then a ridge."""
    at = np.arange(len(KNOTS) - 1)
    widths = math.sqrt(_SMOOTHNESS) * np.minimum(np.diff(EDGES), most + 1.0)[:-1] / typical_s
    smooth = np.zeros((len(at), columns.shape[1]))
    smooth[at, len(PARTS) + at], smooth[at, len(PARTS) + at + 1] = widths, -widths
    ridge = np.diag(math.sqrt(_RIDGE) * np.maximum(columns.max(axis=0), 1e-12) / typical_s * _RIDGE_WEIGHTS)
    return np.vstack([smooth, ridge])


def _octave(count: int) -> int:
    """Return `count` rounded down to a power of two; 0 stays 0."""
    return 1 << (count.bit_length() - 1) if count else 0


def _rounded(count: int) -> int:
    """Return `count` on the coarse grid: exact up to 8, then four values an octave, rounding down."""
    if count <= _FINE_LIMIT:
        return count
    below = count.bit_length() - 1
    return (1 << below) + ((count - (1 << below)) * _CELLS_PER_OCTAVE >> below) * (1 << below) // _CELLS_PER_OCTAVE
