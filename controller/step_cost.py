"""How long a decode-only step takes: a value, and how it is fitted to steps that were measured.

    T(n, m, W) = s [ c0 + c1 n + g(m) + [W > 0] (c2 + c3 n) + c4 n W ] + C      seconds
    C = s [R > 0] (c5 + c6 R)

n: running decodes; m: verified tokens, one for each decode and one for each draft token; W: the drafter's width in
slots a request, 0 when it does not draft; R: positions that it read to catch up; s: drift that strikes all K alike,
which `pool_cost` follows. Where K is chosen there is no C, but what K = 0 leaves behind (`catch_up`) comes on top:

    T(n, m, 0) += min(c n, s (c2 + c3 n))

g is piecewise linear and not decreasing, with knots at powers of two and halfway between: a processor that fills up, a
kernel that pads and one that runs ever more efficiently all fit. No coefficient is negative, so T never falls with m, n
or W.

Fit: non-negative least squares on the means of cells of like steps, with s taken out, errors relative to the measured
time, every cell with the weight that it comes with. Steps that caught up tell of c5 and c6, and of all the rest: at
K = 0 for all, only they show what drafting would cost there. Two mild penalties make it unique: neighbouring slopes of
g are alike, and of two ways to say the same the flatter one counts, where time is rather put down to the base and to m
than to n or W. So where the three only ever moved together a small K looks cheaper than it may be; taking it settles
the matter, whereas the opposite mistake would never be found out (a large K is probed all the time).

Limits: T is a mean, and says nothing of how far it was extrapolated (`PoolCost.is_measured` does).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from controller import nnls

Vector = NDArray[np.float64]
KNOTS = np.array([0.0, *(width * 2.0**octave for octave in range(2, 12) for width in (1.0, 1.5)), 4096.0])
_EDGES = np.append(KNOTS, 1e7)
_SHORTEST_S = 1e-9
_SMOOTHNESS = 0.05
_RIDGE = 1e-4
_DOUBT = np.array([0.1, 5.0, 1.0, 5.0, 5.0, 10.0, 1.0] + [1.0] * len(KNOTS))  # of c0 to c6, then of g's slopes


@dataclass(frozen=True, slots=True)
class StepCost:
    """A fitted T: a value that answers at once for whole arrays."""

    base_s: float
    per_decode_s: float
    drafter_s: float
    drafter_per_decode_s: float
    per_slot_s: float
    verify_s: Vector  # g at KNOTS, then far beyond
    drift_ratio: float = 1.0
    row_s: float = 0.0  # c: what a decode at width 0 leaves to be caught up
    read_s: float = 0.0
    per_read_s: float = 0.0

    def step_s(self, decodes: Vector | float, verified: Vector | float, width: Vector | float) -> Vector:
        """Seconds of a step in which the drafter catches up with nothing; the arguments are broadcast."""
        n, w = np.asarray(decodes, dtype=np.float64), np.asarray(width, dtype=np.float64)
        verify = np.interp(verified, _EDGES, self.verify_s)
        drafter = (w > 0) * (self.drafter_s + self.drafter_per_decode_s * n) + self.per_slot_s * n * w
        within = self.drift_ratio * (self.base_s + self.per_decode_s * n + verify + drafter)
        total: Vector = np.maximum(within + np.where(w > 0, 0.0, self.left_s(n)), _SHORTEST_S)
        return total

    def reading_s(self, positions: float) -> float:
        """Seconds that a step takes longer because the drafter reads so many positions to catch up."""
        return self.drift_ratio * (self.read_s + self.per_read_s * positions) if positions > 0 else 0.0

    def left_s(self, decodes: Vector | float) -> Vector:
        """Seconds that a step without the drafter leaves to it; at most what it would have taken within the step."""
        n = np.asarray(decodes, dtype=np.float64)
        within: Vector = self.drift_ratio * (self.drafter_s + self.drafter_per_decode_s * n)
        left: Vector = np.minimum(np.multiply(n, self.row_s), within)
        return left

    def described(self) -> dict[str, Any]:
        """Return the coefficients as plain data."""
        return {
            "base_s": self.base_s,
            "per_decode_s": self.per_decode_s,
            "drafter_s": self.drafter_s,
            "drafter_per_decode_s": self.drafter_per_decode_s,
            "per_slot_s": self.per_slot_s,
            "verify_s": dict(zip(map(str, KNOTS.astype(int).tolist()), self.verify_s[:-1].tolist(), strict=True)),
            "drift_ratio": self.drift_ratio,
            "row_s": self.row_s,
            "read_s": self.read_s,
            "per_read_s": self.per_read_s,
        }


@dataclass(frozen=True, slots=True)
class WeightedCells:
    """Cells of like steps, each array [cells]: what their steps had and took on average, and how much they count."""

    decodes: Vector
    verified: Vector
    width: Vector
    read: Vector
    seconds: Vector  # with the drift taken out
    weight: Vector  # of the squared relative error; 1 for a cell that is fully believed


def fit_cells(cells: WeightedCells, drift_ratio: float) -> StepCost:
    """Return the cost that says best what `cells` took, at least one of them, with `drift_ratio` put on it."""
    features = _features(cells)
    size = np.sqrt(cells.weight)
    penalties = _penalties(features, float(cells.verified.max()), float(np.average(cells.seconds, weights=size)))
    rows = np.vstack([features * (size / cells.seconds)[:, None], penalties])
    target = np.concatenate([size, np.zeros(len(penalties))])
    # Columns of one size: the tolerance of the solver then means the same for each coefficient.
    size_of = np.linalg.norm(rows, axis=0)
    found = nnls.solve(rows / size_of, target) / size_of
    plain = len(found) - len(KNOTS)
    heights = np.cumsum(found[plain:] * np.diff(_EDGES))
    base, per_decode, drafter, drafter_per_decode, per_slot, reading, per_read = map(float, found[:plain])
    return StepCost(
        base_s=base,
        per_decode_s=per_decode,
        drafter_s=drafter,
        drafter_per_decode_s=drafter_per_decode,
        per_slot_s=per_slot,
        verify_s=np.concatenate([[0.0], heights]),
        drift_ratio=drift_ratio,
        read_s=reading,
        per_read_s=per_read,
    )


def _features(cells: WeightedCells) -> Vector:
    """What c0 to c6 and the slopes of g are multiplied by: [cells, coefficients]."""
    n, w = cells.decodes, cells.width
    on, reads = (w > 0).astype(np.float64), (cells.read > 0).astype(np.float64)
    return np.column_stack([np.ones_like(n), n, on, on * n, n * w, reads, cells.read, _ramps(cells.verified)])


def _ramps(verified: Vector) -> Vector:
    """How far each m has come in every segment of g: [cells, segments] tokens."""
    widths = np.diff(_EDGES)
    ramps: Vector = np.clip(verified[:, None] - KNOTS[None, :], 0.0, widths[None, :])
    return ramps


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
