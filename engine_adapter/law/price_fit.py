"""Fits the prices of a step (`law.prices`) to the steps of one engine.

Similar steps are averaged in a *cell*, so steps that do not occur now keep their times. A cause that slows all steps in
the same proportion, such as another process on the machine, is the *slowdown factor*: the present time of steps of
well-known cells over the mean time of their cells. Cells hold times divided by this factor, and it returns to 1 by
itself.

Non-negative coefficients are fitted to the cells, with relative errors. The weight of a cell grows with its steps up to
a limit. Two weak penalties make the fit unique. The first is on differences between neighbouring slopes of g, where g
is the time of the target's pass by tokens (`law.prices`). The second penalty matters if two explanations fit the
data equally well: it then attributes time to the base and to tokens first. This underestimates the cost of a small K,
so the law chooses it and its cost is measured. The opposite error would remain, because a K that seems too expensive is
not chosen.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import mul

import numpy as np
from numpy.typing import NDArray

from specpilot.engine_adapter.evidence.meter import StepShape
from specpilot.engine_adapter.law import nnls
from specpilot.engine_adapter.law.graphs import Graphs
from specpilot.engine_adapter.law.prices import EDGES, KNOTS, PARTS, Coefficients, padded

Vector = NDArray[np.float64]
CELL_STEPS = 400
"""Memory of a cell, in steps: a cell is the mean of its steps, and from this number on a moving mean."""

KNOWN_STEPS = 30
"""Steps that a cell must have before its steps change the slowdown factor."""

CELLS = 400
"""Largest number of cells, a multiple of `_BLOCK`. It bounds the time of a fit: 0.4 ms, once a second, on the
exporter's thread."""

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
_CONTEXT = PARTS.index("context")
_OF_DRAFTS = slice(_CONTEXT + 1, _CONTEXT + 3)
"""`verifying_context` and `draft_context`."""
LONG_CONTEXT = 1024
"""Tokens of a long context. Once one was seen, steps are in different cells if the mean context of a decode, or of a
draft token, differs by an octave above this."""
_GRAPHS = PARTS.index("piecewise")
"""Index of the first feature about graphs. Steps that differ in these features are in different cells."""
_HALF_WEIGHT = 20.0
"""Number of steps at which a cell has half of the largest weight in the fit."""
_SMOOTHNESS, _RIDGE = 0.05, 1e-4
"""Weights of the two penalties, relative to a measured step. Both are small, so they matter only if the data do not
decide."""
_RIDGE_WEIGHT = {
    "base": 0.1, "decode": 5.0, "drafter": 5.0, "drafting_decode": 20.0, "slot": 3.0, "pass": 1.0, "prefill": 1.0,
    "context": 5.0, "verifying_context": 2.0, "draft_context": 3.0, "reads": 1.0, "read": 1.0, "piecewise": 5.0,
    "graphless": 5.0, "drafter_graphless": 5.0,
}  # fmt: skip
"""The weight of each price in the second penalty. Of two explanations the one with the smaller weights wins."""
_RIDGE_WEIGHTS = np.array([*(_RIDGE_WEIGHT[name] for name in PARTS), *([1.0] * len(KNOTS))])
_LONG_CONTEXT_WEIGHT = 20.0
"""The weight of `context` once a long context was seen. While each step with one verifies drafts, nothing tells whether
K = 0 would be cheaper. With this weight it seems so, and is tried if that would pay. With 5 it is not tried where it
does (simulated: 0.86 of the throughput of K = 0)."""

_BLOCK = 40
"""Rows of the table that are multiplied at once. OpenBLAS multiplies larger matrices in threads of its own, which spin
on cores that others use. With 400 cells it did (OpenBLAS 0.3.30, two cores): 26 ms of CPU time a fit instead of 0.4."""
_WIDTHS, _SPANS = np.diff(EDGES), [*pairwise(EDGES.tolist())]
_TOKENS, _PRICES = len(PARTS), len(PARTS) + len(KNOTS)
_EACH, _SLOPE = np.arange(_PRICES), np.arange(len(PARTS), _PRICES - 1)


class _Cell:
    """The mean step of a cell: its `features` (`features_of`), and `seconds` without the slowdown.

    `place` is its row in the table of the fit.
    """

    __slots__ = ("features", "place", "seconds", "steps")

    def __init__(self, features: Sequence[float], seconds: float, place: int) -> None:
        self.features, self.seconds, self.steps, self.place = list(features), seconds, 1, place

    def add(self, features: Sequence[float], seconds: float) -> None:
        """Add one step to the mean."""
        self.steps += 1
        share = 1.0 / min(self.steps, CELL_STEPS)
        self.seconds += share * (seconds - self.seconds)
        self.features = [old + share * (new - old) for old, new in zip(self.features, features, strict=True)]


class StepCost:
    """Learns the time of a step (T of `law.prices`) of one engine with these CUDA `graphs`, `None` without any."""

    def __init__(self, graphs: Graphs | None = None) -> None:
        self._graphs = graphs
        self._cells: dict[tuple[float, ...], _Cell] = {}
        self._changed: dict[int, _Cell] = {}  # cells with steps since the last fit, by place
        # Of each cell its amounts of the prices, its seconds, its steps and its tokens; a row without steps is unused
        self._table = np.zeros((CELLS, _PRICES + 3))
        self._table[:, _PRICES] = 1.0
        self._prices = np.zeros(_PRICES)  # of the last fit
        # Of the latest step, without contexts; often the next one has the same
        self._sizes: list[int] = []
        self._key, self._features = tuple[float, ...](), tuple[float, ...]()
        self._log_slowdown = 0.0
        self.steps = 0
        self.has_long = False  # whether a long context was seen; before, drafts have no prices for contexts

    @property
    def slowdown(self) -> float:
        """The present time of a step divided by its usual time."""
        return math.exp(self._log_slowdown)

    def note(self, shape: StepShape, seconds: float, context: int) -> None:
        """Add one step: its seconds, and its context, the total length of its requests' sequences."""
        of_drafts, *sizes = shape.draft_context, *shape[:6], shape.passes
        if sizes != self._sizes:
            self._sizes, self._features = sizes, features_of(shape, 0, self._graphs)
            self._key = _key(shape, self._features)
        drafts = shape.verified - shape.decodes
        means = (context // (shape.decodes or 1), of_drafts // (drafts or 1)) if self.has_long else (0, 0)
        key = *self._key, *[_octave(mean // LONG_CONTEXT) for mean in means]
        known = self._features
        features = (*known[:_CONTEXT], context, context if drafts else 0, of_drafts, *known[_CONTEXT + 3 :])
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
        if cell is not None:
            cell.add(features, seconds)
        elif len(self._cells) < CELLS:
            cell = _Cell(features, seconds, len(self._cells))
        else:
            cell = _Cell(features, seconds, self._cells.pop(next(iter(self._cells))).place)
        self._cells[key] = cell  # at the end: the cell not visited for longest is dropped first
        self._changed[cell.place] = cell

    def fit(self, between: Callable[[], None] = lambda: None) -> Coefficients | None:
        """Return the coefficients that fit the times of the cells best; `None` before the first step.

        `between` is called between two parts of the computation.
        """
        if not self._cells:
            return None
        if self._changed:
            self._update_table()
            between()
            gram, projected = self._normal_equations()
            scale = np.sqrt(gram.diagonal())  # columns of one size: the solver's tolerance then suits each
            gram /= scale[:, None] * scale
            self._prices = nnls.solve(gram, projected / scale, self._prices * scale, between) / scale
        prices = self._prices.tolist()
        return Coefficients(tuple(prices[: len(PARTS)]), tuple(prices[len(PARTS) :]))

    def _update_table(self) -> None:
        """Write the cells that have changed since the last call to their rows of the table."""
        changed, self._changed = self._changed, {}
        rows = np.array([(*cell.features, cell.seconds, cell.steps) for cell in changed.values()])
        parts, tokens = rows[:, :_TOKENS], rows[:, _TOKENS : _TOKENS + 1]
        self._table[list(changed)] = np.hstack([
            parts, np.clip(tokens - KNOTS, 0.0, _WIDTHS), rows[:, _TOKENS + 1 :], tokens
        ])  # fmt: skip

    def _normal_equations(self) -> tuple[Vector, Vector]:
        """Return the matrix and the right side of the equations that the prices solve, penalties included."""
        columns, (seconds, steps, tokens) = self._table[:, :_PRICES], self._table[:, _PRICES:].T
        weight = steps / (steps + _HALF_WEIGHT)
        blocks = (columns * (weight / seconds**2)[:, None]).reshape(-1, _BLOCK, _PRICES)
        both = self._table[:, : _PRICES + 1].reshape(-1, _BLOCK, _PRICES + 1)  # a view
        sums = (blocks.transpose(0, 2, 1) @ both).sum(axis=0)
        gram, projected, ridge = sums[:, :-1].copy(), sums[:, -1], _RIDGE_WEIGHTS.copy()
        if self.has_long:
            ridge[_CONTEXT] = _LONG_CONTEXT_WEIGHT
        else:
            gram[_OF_DRAFTS] = gram[:, _OF_DRAFTS] = 0.0
            projected[_OF_DRAFTS] = 0.0
        size = np.sqrt(weight)
        _add_penalties(gram, columns.max(axis=0), ridge, float(tokens.max()), float(seconds @ size / size.sum()))
        return gram, projected


def features_of(shape: StepShape, context: int, graphs: Graphs | None) -> tuple[float, ...]:
    """Return the amount of each of `PARTS` in a step, and the tokens of the target's pass, padding included."""
    n, m, slots, prefill, read, is_uniform, draft_context, passes = shape
    run = padded(graphs, n, m, slots, prefill, is_uniform=is_uniform)
    drafts = float(slots > 0)
    return (
        1.0, n, drafts, drafts * n, run.slots, passes, prefill, context, context if m > n else 0, draft_context,
        float(read > 0), read, run.piecewise, run.graphless, run.drafter_graphless, run.tokens,
    )  # fmt: skip


def step_s(coefficients: Coefficients, features: Sequence[float]) -> float:
    """Return the seconds of a step with these features (`features_of`), prefill and catching up included."""
    seconds: float = sum(map(mul, coefficients.parts, features))
    tokens = features[-1]
    for slope, (begin, end) in zip(coefficients.slopes, _SPANS, strict=True):
        if tokens <= begin:
            break
        seconds += slope * (min(tokens, end) - begin)
    return seconds


def _add_penalties(gram: Vector, largest: Vector, weights: Vector, most: float, typical_s: float) -> None:
    """Add the penalties: differences of neighbouring slopes of g up to `most` tokens, and a ridge.

    `largest` is the largest amount of each price in a step, `weights` are those of the ridge.
    """
    smooth = _SMOOTHNESS * (np.minimum(_WIDTHS[:-1], most + 1.0) / typical_s) ** 2
    ridge = _RIDGE * (np.maximum(largest, 1e-12) / typical_s * weights) ** 2
    gram[_EACH, _EACH] += ridge
    gram[_SLOPE, _SLOPE] += smooth
    gram[_SLOPE + 1, _SLOPE + 1] += smooth
    gram[_SLOPE, _SLOPE + 1] -= smooth
    gram[_SLOPE + 1, _SLOPE] -= smooth


def _key(shape: StepShape, features: Sequence[float]) -> tuple[float, ...]:
    """Return the cell of a step with these features, contexts apart."""
    n, _, slots, prefill, read = shape[:5]
    tokens, graphs = int(features[-1]), features[_GRAPHS:-1]
    return (_rounded(n), _rounded(tokens), _octave(slots), _octave(prefill), _octave(read), shape.passes, *graphs)


def _octave(count: int) -> int:
    """Return `count` rounded down to a power of two; 0 stays 0."""
    return 1 << (count.bit_length() - 1) if count else 0


def _rounded(count: int) -> int:
    """Return `count` on the coarse grid: exact up to 8, then four values an octave, rounding down."""
    if count <= _FINE_LIMIT:
        return count
    below = count.bit_length() - 1
    return (1 << below) + ((count - (1 << below)) * _CELLS_PER_OCTAVE >> below) * (1 << below) // _CELLS_PER_OCTAVE
