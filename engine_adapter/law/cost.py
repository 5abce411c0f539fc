"""What a step takes, learned by the engine from its own steps: exact features in, a price list out (`policy.prices`).

Steps are averaged in cells of like steps, so what the engine does not run now is not forgotten. What makes all steps
slower alike, such as another process on the machine, is the *slowdown factor*: what steps of well-known cells take now
over what they took. It is taken out of what the cells hold, and returns to 1 by itself. Non-negative coefficients are
fitted to the cells, errors relative, every cell with a weight that saturates with its steps.

Two mild penalties make the fit unique: neighbouring slopes of g are alike, and where the data cannot tell two
explanations apart, time is put down to the base and to tokens first. A small K then looks cheaper than it may be, so it
is chosen and measured; the opposite error would never be found, because what looks expensive is not tried.
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
"""Steps after which a cell of like steps follows new measurements."""

KNOWN_STEPS = 30
"""Steps of a cell that tell what its steps take well enough to tell the slowdown factor by them."""

CELLS = 400
"""Cells that are remembered; bounds the time of a fit: some milliseconds a second, beside the scheduler's thread."""

SLOWDOWN_SHARE = 0.05
"""What a step adds to the logarithm of the slowdown factor: a memory of 20 steps."""

SLOWDOWN_KEPT = 0.99
"""What the logarithm of the slowdown factor keeps of itself at each step: a memory of 100 steps, so that it returns
to 1 where cells do not say otherwise. What makes only some steps slower, such as a slow host on a GPU, raised it for
good: on the plants of the H200 to 1.9 within 80 s, and loads that were not run then looked twice as dear (on the
trace `h200` this memory gains 5 %)."""

PAUSE = 0.5
"""Logarithm (a factor of 1.65) of a step's error beyond which it is not averaged into its cell: a pause is no cost."""

_FINE_LIMIT, _CELLS_PER_OCTAVE = 8, 4
"""The largest number of decodes or tokens that a cell names exactly, and the cells of each doubling above it."""
_GRAPHS = PARTS.index("piecewise")
"""Where the features begin that say which graphs a step lacks: such steps share no cell with others."""
_HALF_WEIGHT = 20.0
"""Steps of a cell that have half of the largest weight in the fit."""
_SMOOTHNESS, _RIDGE = 0.05, 1e-4
"""Weights of the two penalties, relative to a measured step. Both are small: they decide where the data cannot."""
_DOUBT = {
    "base": 0.1, "decode": 5.0, "drafter": 5.0, "drafting_decode": 20.0, "slot": 3.0, "prefill": 1.0, "context": 5.0,
    "reads": 1.0, "read": 1.0, "piecewise": 5.0, "graphless": 5.0, "drafter_graphless": 5.0,
}  # fmt: skip
"""The weight of each price in the second penalty. Of two explanations the one with the smaller weights wins."""
_DOUBTS = np.array([*(_DOUBT[name] for name in PARTS), *([1.0] * len(KNOTS))])


class _Cell:
    """The mean step of a cell: `features` are `PARTS` and the padded tokens, `seconds` at a slowdown factor of 1."""

    __slots__ = ("features", "seconds", "steps")

    def __init__(self, features: Sequence[float], seconds: float) -> None:
        self.features, self.seconds, self.steps = list(features), seconds, 1

    def add(self, features: Sequence[float], seconds: float) -> None:
        """Average a step in."""
        self.steps += 1
        share = 1.0 / min(self.steps, CELL_STEPS)
        self.seconds += share * (seconds - self.seconds)
        self.features = [old + share * (new - old) for old, new in zip(self.features, features, strict=True)]


class StepCost:
    """Learns T of one engine with these CUDA `graphs`; `None`: it has none."""

    def __init__(self, graphs: Graphs | None = None) -> None:
        self._graphs = graphs
        self._cells: dict[tuple[float, ...], _Cell] = {}
        self._log_slowdown = 0.0
        self.steps = 0

    @property
    def slowdown(self) -> float:
        """How many times its usual time a step takes now."""
        return math.exp(self._log_slowdown)

    def note(self, shape: StepShape, seconds: float, context: int) -> None:
        """Take a step in."""
        features = features_of(shape, context, self._graphs)
        tokens, graphs = int(features[-1]), features[_GRAPHS:-1]
        n, slots, prefill, read = shape.decodes, shape.slots, shape.prefill, shape.read
        key = (_rounded(n), _rounded(tokens), _octave(slots), _octave(prefill), _octave(read), *graphs)
        seconds = max(seconds, 1e-6)
        self.steps += 1
        self._log_slowdown *= SLOWDOWN_KEPT
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
        self._cells[key] = cell  # the cell that was visited last is the last one to go
        if len(self._cells) > CELLS:
            del self._cells[next(iter(self._cells))]

    def fit(self) -> Coefficients | None:
        """Return what says best what the cells took; `None` before the first step."""
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
        scale = np.linalg.norm(rows, axis=0)  # columns of one size: the solver's tolerance then means the same for each
        found = (nnls.solve(rows / scale, target) / scale).tolist()
        return Coefficients(tuple(found[: len(PARTS)]), tuple(found[len(PARTS) :]))


def features_of(shape: StepShape, context: int, graphs: Graphs | None) -> tuple[float, ...]:
    """Return what a step has of each of `PARTS`, and the tokens of the target's pass, padding included."""
    n, m, slots, prefill, read, is_uniform = shape
    run = padded(graphs, n, m, slots, prefill, is_uniform=is_uniform)
    drafts = float(slots > 0)
    return (
        1.0, n, drafts, drafts * n, run.slots, prefill, context, float(read > 0), read,
        run.piecewise, run.graphless, run.drafter_graphless, run.tokens,
    )  # fmt: skip


def step_s(coefficients: Coefficients, features: Sequence[float]) -> float:
    """Return the seconds of a step with these `features_of`, all that is in it included."""
    slopes = np.array(coefficients.slopes)
    passed = np.clip(features[-1] - KNOTS, 0.0, np.diff(EDGES))
    return float(np.dot(coefficients.parts, features[:-1]) + slopes @ passed)


def _penalties(columns: Vector, most: float, typical_s: float) -> Vector:
    """Return rows that want neighbouring slopes of g alike up to `most` tokens, then rows that want little of all."""
    at = np.arange(len(KNOTS) - 1)
    widths = math.sqrt(_SMOOTHNESS) * np.minimum(np.diff(EDGES), most + 1.0)[:-1] / typical_s
    smooth = np.zeros((len(at), columns.shape[1]))
    smooth[at, len(PARTS) + at], smooth[at, len(PARTS) + at + 1] = widths, -widths
    ridge = np.diag(math.sqrt(_RIDGE) * np.maximum(columns.max(axis=0), 1e-12) / typical_s * _DOUBTS)
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
