"""The time of a step as a function of its content, and its fit to measured steps.

    T = s [ c0 + c1 n + g(m + P) + [D > 0] (c2 + c11 n) + c3 D + c4 P + c5 X
            + [R > 0] c6 + c7 R + c8 W + c9 G + c10 H ]                                     seconds

n: running decodes; m: tokens to verify, one for each decode and one for each draft token; D: slots that the drafter
lays out, 0 when it does not run; P: prefilled tokens; X: tokens of context, over all requests of the step; R: positions
that the drafter read to catch up; s: the machine's slowdown factor (`slowdown`). On an engine with CUDA graphs
(`graph_shape`) m + P and D are the padded sizes of the passes; W, G and H are 1 if the target's pass is piecewise, if
it has no graph, and if the drafter's has none. Decode-only steps, steps with prefill and steps that caught up are
fitted together, each by its content. c11: in a step with draft tokens every running decode has a cost, drafted for or
not: it is sampled by rejection, and the drafter's inputs are prepared row by row.

g is piecewise linear and not decreasing, with knots at powers of two and halfway between. It fits a processor that
fills up, a kernel that pads, and one that becomes more efficient with size. Prefilled tokens fill the processor like
verified ones, so verification is not free in a step that prefills; c4 is their additional cost. No coefficient is
negative, so T never falls as a step has more work, with one exception: more draft tokens may reach the size of a graph,
so that K_max is cheaper than K_max - 1. Every term is a column of `_features` and a coefficient of `StepCost`.

Fit: non-negative least squares on the means of cells of like steps, with errors relative to their seconds at a slowdown
factor of 1 and the weights of the cells. Two mild penalties make it unique: neighbouring slopes of g are similar, and
when the data do not separate two explanations, time is assigned to the base and to m rather than to n, D or X. A small
K may then seem cheaper than it is, so it is chosen and measured. The opposite error would persist, because a K that
seems expensive is not tried.

Limits: T is a mean, without a measure of extrapolation (`PoolCost.is_measured` has one).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specpilot.controller.estimation.graph_shape import Shape, Step, of_cell, of_mix, unpadded
from specpilot.policy import nnls
from specpilot.policy.graphs import Graphs

Vector = NDArray[np.float64]
KNOTS = np.array([0.0, *(width * 2.0**octave for octave in range(2, 12) for width in (1.0, 1.5)), 4096.0])
_EDGES = np.append(KNOTS, 1e7)
_SHORTEST_S = 1e-9
_SMOOTHNESS = 0.05
_RIDGE = 1e-4
_DOUBT = np.array([0.1, 5.0, 5.0, 3.0, 1.0, 5.0, 1.0, 1.0, 5.0, 5.0, 5.0, 20.0] + [1.0] * len(KNOTS))  # c0 to c11, g's


@dataclass(frozen=True, slots=True)
class StepCost:
    """A fitted T. `left_s`, not a part of it, is the catch-up cost of a decode at K = 0 in seconds (`pool_cost`).

    `graphs` are the engine's; `None` when it has none or they are unknown: then sizes are not padded.
    """

    base_s: float
    per_decode_s: float
    drafter_s: float
    per_slot_s: float
    per_prefill_s: float
    per_context_s: float
    read_s: float
    per_read_s: float
    verify_s: Vector  # g at KNOTS, then far beyond
    pace_ratio: float = 1.0
    left_s: float = 0.0
    piecewise_s: float = 0.0
    graphless_s: float = 0.0
    drafter_graphless_s: float = 0.0
    drafting_per_decode_s: float = 0.0
    graphs: Graphs | None = None

    def step_s(  # noqa: PLR0913 - what is in a step
        self,
        decodes: Vector | float,
        verified: Vector | float,
        slots: Vector | float,
        *,
        drafts: Vector | float | None = None,
        prefill: Vector | float = 0.0,
        context: Vector | float = 0.0,
        shares: Vector | None = None,
    ) -> Vector:
        """Return the seconds of a step without catch-up; the arguments are broadcast.

        `drafts` is the probability that the drafter runs, for a mean over steps; by default it runs if it has slots.
        `shares` [..., K_max + 1] are the shares of each K among the decodes, for a mean over mixes; without it the step
        was measured, or all its decodes have the same K.
        """
        n, d = np.asarray(decodes, dtype=np.float64), np.asarray(slots, dtype=np.float64)
        runs = (d > 0).astype(np.float64) if drafts is None else np.asarray(drafts, dtype=np.float64)
        p = np.asarray(prefill, dtype=np.float64)
        shape = _shape(self.graphs, Step(n, np.asarray(verified, dtype=np.float64), d, p, runs), shares)
        within = (
            self.base_s + self.per_decode_s * n + np.interp(shape.tokens, _EDGES, self.verify_s)
            + (self.drafter_s + self.drafting_per_decode_s * n) * runs + self.per_slot_s * shape.slots
            + self.per_prefill_s * p + self.per_context_s * np.asarray(context)
            + self.piecewise_s * shape.piecewise + self.graphless_s * shape.graphless
            + self.drafter_graphless_s * shape.drafter_graphless
        )  # fmt: skip
        total: Vector = np.maximum(self.pace_ratio * within, _SHORTEST_S)
        return total

    def cell_s(self, means: Vector) -> Vector:
        """Return the seconds of measured steps, also with catch-up, from their content [cells, COLUMNS]."""
        n, m, d, x, p, r = means.T
        read_s = np.where(r > 0, self.read_s, 0.0) + self.per_read_s * r
        total: Vector = self.step_s(n, m, d, prefill=p, context=x) + self.pace_ratio * read_s
        return total

    def prefill_s(self, tokens: float) -> float:
        """Return the seconds that `tokens` prefilled tokens add to a step without verification."""
        return self.pace_ratio * (self.per_prefill_s * tokens + float(np.interp(tokens, _EDGES, self.verify_s)))

    def described(self) -> dict[str, Any]:
        """Return the coefficients as plain data."""
        return {
            **{name: getattr(self, name) for name in COEFFICIENTS},
            "verify_s": dict(zip(map(str, KNOTS.astype(int).tolist()), self.verify_s[:-1].tolist(), strict=True)),
            "pace_ratio": self.pace_ratio,
            "left_s": self.left_s,
        }


COEFFICIENTS = (
    "base_s", "per_decode_s", "drafter_s", "per_slot_s", "per_prefill_s", "per_context_s", "read_s", "per_read_s",
    "piecewise_s", "graphless_s", "drafter_graphless_s", "drafting_per_decode_s",
)  # fmt: skip
"""The coefficients of T without g's, in the order of `_features`."""
COLUMNS = ("decodes", "verified", "slots", "context", "prefill", "read")
"""The columns of a cell's means."""


def fit_cells(means: Vector, seconds: Vector, weight: Vector, graphs: Graphs | None = None) -> StepCost:
    """Return the cost that fits cells of like steps best.

    `means` [cells, COLUMNS] is their mean content, `seconds` [cells] their time at a slowdown factor of 1, `weight`
    [cells] the weight of each squared relative error, 1 at full weight. There is at least one cell. `graphs` are the
    engine's.
    """
    features = _features(means, graphs)
    size = np.sqrt(weight)
    penalties = _penalties(features, float((means[:, 1] + means[:, 4]).max()), float(np.average(seconds, weights=size)))
    rows = np.vstack([features * (size / seconds)[:, None], penalties])
    target = np.concatenate([size, np.zeros(len(penalties))])
    # Columns are scaled to one size, so that the solver's tolerance is the same for each coefficient.
    size_of = np.linalg.norm(rows, axis=0)
    found = nnls.solve(rows / size_of, target) / size_of
    plain = len(found) - len(KNOTS)
    heights = np.cumsum(found[plain:] * np.diff(_EDGES))
    plain_of = dict(zip(COEFFICIENTS, found[:plain].tolist(), strict=True))
    return StepCost(**plain_of, verify_s=np.concatenate([[0.0], heights]), graphs=graphs)


def _shape(graphs: Graphs | None, step: Step, shares: Vector | None = None) -> Shape:
    if graphs is None:
        return unpadded(step)
    return of_cell(graphs, step) if shares is None else of_mix(graphs, step, shares)


def _features(means: Vector, graphs: Graphs | None) -> Vector:
    """Return the factors of c0 to c11 and of the slopes of g: [cells, coefficients]."""
    n, m, d, x, p, r = means.T
    runs, reads = (d > 0).astype(np.float64), (r > 0).astype(np.float64)
    shape = _shape(graphs, Step(n, m, d, p, runs))
    missing = [np.broadcast_to(part, n.shape) for part in shape[2:]]
    widths = np.diff(_EDGES)
    ramps = np.clip(shape.tokens[:, None] - KNOTS[None, :], 0.0, widths[None, :])
    return np.column_stack([np.ones_like(n), n, runs, shape.slots, p, x, reads, r, *missing, runs * n, ramps])


def _penalties(features: Vector, most_verified: float, typical_s: float) -> Vector:
    """Return the rows of the penalties: differences of g's slopes up to `most_verified`, then all coefficients."""
    plain = features.shape[1] - len(KNOTS)
    widths = np.minimum(np.diff(_EDGES), max(most_verified, 1.0))
    smooth = np.zeros((len(KNOTS) - 1, features.shape[1]))
    for index in range(len(KNOTS) - 1):
        size = np.sqrt(_SMOOTHNESS) * widths[index] / typical_s
        smooth[index, plain + index], smooth[index, plain + index + 1] = size, -size
    scale = np.maximum(features.max(axis=0), 1e-12)
    ridge = np.diag(np.sqrt(_RIDGE) * scale / typical_s) * _DOUBT[:, None]
    return np.vstack([smooth, ridge])
