"""How long a step takes: a value, and how it is fitted to steps that were measured.

    T = s [ c0 + c1 n + g(m + P) + [D > 0] (c2 + c11 n) + c3 D + c4 P + c5 X
            + [R > 0] c6 + c7 R + c8 W + c9 G + c10 H ]                                     seconds

n: running decodes; m: tokens to verify, one for each decode and one for each draft token; D: slots that the drafter
lays out, 0 when it does not run; P: prefilled tokens; X: tokens of context, over all requests of the step; R: positions
that the drafter read to catch up; s: the machine's pace, which strikes everything alike (`pace`). On an engine with
CUDA graphs (`graph_shape`) m + P and D are what the passes are padded to, and W, G, H are 1 where the target's pass is
piecewise, has no graph, and the drafter's has none. Decode-only steps, steps with prefill and steps that caught up are
all fitted together; each is priced by what was in it. c11: a step with draft tokens costs every running decode
something, drafted for or not: it is sampled by rejection, and the drafter's inputs are prepared row by row.

g is piecewise linear and not decreasing, with knots at powers of two and halfway between: a processor that fills up, a
kernel that pads and one that runs ever more efficiently all fit. Prefilled tokens fill the processor as verified ones
do: where a step prefills, verification is not free any more; c4 is what they cost besides. No coefficient is negative,
so T never falls with anything that a step is given to do; but where that makes it find a graph, K_max may be cheaper
than K_max - 1. Every term is a column of `_features` and a coefficient of `StepCost`.

Fit: non-negative least squares on the means of cells of like steps, errors relative to what they took at a pace of 1,
every cell with the weight that it comes with. Two mild penalties make it unique: neighbouring slopes of g are alike,
and where the data cannot tell two explanations apart, time is put down to the base and to m rather than to n, D or X. A
small K then looks cheaper than it may be, so it is chosen and measured; the opposite error would never be found,
because what looks expensive is not tried.

Limits: T is a mean, and says nothing of how far it was extrapolated (`PoolCost.is_measured` does).
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
    """A fitted T. `left_s`, no part of it, is what a decode at K = 0 leaves to be caught up (`pool_cost`), in seconds.

    `graphs` are the engine's, `None` where it has none, or none are known: there nothing is padded.
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
        """Seconds of a step that catches up with nothing; the arguments are broadcast.

        `drafts` is the probability that the drafter runs, of a step known on average only; by default it runs where it
        has slots. `shares` [..., K_max + 1] are those of each K among the decodes, where it is a mean over mixes;
        without it the step is one that was measured, or in which all have the same K.
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
        """Seconds of steps that were measured, those that caught up too, by what was in them: [cells, COLUMNS]."""
        n, m, d, x, p, r = means.T
        read_s = np.where(r > 0, self.read_s, 0.0) + self.per_read_s * r
        total: Vector = self.step_s(n, m, d, prefill=p, context=x) + self.pace_ratio * read_s
        return total

    def prefill_s(self, tokens: float) -> float:
        """Seconds that prefilling so many tokens adds to a step that verifies nothing."""
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
"""The coefficients of T but for g's, in the order of `_features`."""
COLUMNS = ("decodes", "verified", "slots", "context", "prefill", "read")
"""What the means of a cell state, in this order."""


def fit_cells(means: Vector, seconds: Vector, weight: Vector, graphs: Graphs | None = None) -> StepCost:
    """Return the cost that says best what cells of like steps took.

    `means` [cells, COLUMNS] is what was in their steps on average, `seconds` [cells] what these took at a pace of 1,
    `weight` [cells] how much each squared relative error counts, 1 for a cell that is fully believed. There is one cell
    at least. `graphs` are the engine's.
    """
    features = _features(means, graphs)
    size = np.sqrt(weight)
    penalties = _penalties(features, float((means[:, 1] + means[:, 4]).max()), float(np.average(seconds, weights=size)))
    rows = np.vstack([features * (size / seconds)[:, None], penalties])
    target = np.concatenate([size, np.zeros(len(penalties))])
    # Columns of one size: the tolerance of the solver then means the same for each coefficient.
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
    """What c0 to c11 and the slopes of g are multiplied by: [cells, coefficients]."""
    n, m, d, x, p, r = means.T
    runs, reads = (d > 0).astype(np.float64), (r > 0).astype(np.float64)
    shape = _shape(graphs, Step(n, m, d, p, runs))
    missing = [np.broadcast_to(part, n.shape) for part in shape[2:]]
    widths = np.diff(_EDGES)
    ramps = np.clip(shape.tokens[:, None] - KNOTS[None, :], 0.0, widths[None, :])
    return np.column_stack([np.ones_like(n), n, runs, shape.slots, p, x, reads, r, *missing, runs * n, ramps])


def _penalties(features: Vector, most_verified: float, typical_s: float) -> Vector:
    """Rows that want slopes of g like their neighbours' up to `most_verified`, then those that want little of all."""
    plain = features.shape[1] - len(KNOTS)
    widths = np.minimum(np.diff(_EDGES), max(most_verified, 1.0))
    smooth = np.zeros((len(KNOTS) - 1, features.shape[1]))
    for index in range(len(KNOTS) - 1):
        size = np.sqrt(_SMOOTHNESS) * widths[index] / typical_s
        smooth[index, plain + index], smooth[index, plain + index + 1] = size, -size
    scale = np.maximum(features.max(axis=0), 1e-12)
    ridge = np.diag(np.sqrt(_RIDGE) * scale / typical_s) * _DOUBT[:, None]
    return np.vstack([smooth, ridge])
