"""The choice: for every number of running decodes n, the K of each class that yields the most.

With n_c = n * share_c running decodes of class c, weight w_c and step time T (see `step_cost`):

    goodput:  G = sum_c w_c n_c AL_c(K_c) / T(n, m, W),   m = sum_c n_c (1 + K_c),   W = max_c K_c     tokens/s
    latency:  L = sum_c w_c n_c T / AL_c(K_c)      the mean time per token of a request, to be made small     s

Goodput: for a fixed W every candidate position (c, i), i <= W, adds w_c n_c S_{c,i} tokens for n_c verified ones, and
S falls with i. So with the candidates sorted by w_c S_{c,i} the best set is a prefix: walk the list once for every W
and keep the best prefix. That is exact for a T linear in m. Where T bends, or an SLO forbids a prefix, a class is too
big a lump for the argument to hold; the best prefix is then improved by changing one class's K at a time until nothing
gains, which never makes it worse.

SLO: the predicted inter-token latency of class c is T / AL_c. A choice in which every bound holds beats every one in
which some bound breaks; when none holds, the choice with the smallest worst excess wins.

n = 1 is no mixture: the one running decode belongs to one class, so each class is solved alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from policy.types import Objective

Vector = NDArray[np.float64]
Matrix = NDArray[np.int64]
_EQUAL = 1e-12
_GAIN = 1e-9
_ROUNDS = 4


class Cost(Protocol):
    """Step time in seconds for arrays of running decodes, verified tokens and drafter widths."""

    def step_s(self, decodes: Vector | float, verified: Vector | float, width: Vector | float) -> Vector:
        """Seconds; must not fall with `verified` nor `width`."""


@dataclass(frozen=True, slots=True)
class Demand:
    """One class as the choice sees it: `share` of the running decodes (0..1), S_1.. up to the deepest K, bounds."""

    name: str
    share: float
    survival: Vector
    weight: float = 1.0
    k_min: int = 0
    k_max: int = 0
    itl_slo_s: float | None = None


@dataclass(frozen=True, slots=True)
class Yield:
    """What a choice is predicted to do, one value for each n: weighted tokens per second, seconds, and the score.

    `score` orders choices: larger is better; it is negative when an SLO breaks.
    """

    goodput: Vector
    step_s: Vector
    score: Vector


def grid(max_num_seqs: int) -> Vector:
    """Return the numbers of running decodes to decide for: each up to 32, then in steps of about 10 %."""
    points = list(range(1, min(max_num_seqs, 32) + 1))
    while points[-1] < max_num_seqs:
        points.append(min(max_num_seqs, int(points[-1] * 1.1) + 1))
    return np.array(points, dtype=np.float64)


def evaluate(demands: Sequence[Demand], n: Vector, k: Matrix, cost: Cost, objective: Objective) -> Yield:
    """Return what `k` [rows, classes] yields at the decodes `n` [rows]."""
    return _Tables.of(demands).evaluate(n, k, cost, objective)


def choose(demands: Sequence[Demand], n: Vector, cost: Cost, objective: Objective = Objective.GOODPUT) -> Matrix:
    """Return the best K [rows, classes] for every n of `n`."""
    chosen = _walk(demands, n, cost, objective)
    chosen = _improve(demands, n, chosen, cost, objective)
    alone = n <= 1
    if alone.any() and len(demands) > 1:
        for column, demand in enumerate(demands):
            single = [replace(demand, share=1.0)]
            chosen[alone, column] = _improve(
                single, n[alone], _walk(single, n[alone], cost, objective), cost, objective
            )[:, 0]
    return chosen


@dataclass(frozen=True, slots=True)
class _Tables:
    """The demands as arrays: shares, weights, AL by K [classes, K + 1], and (column, seconds) of each SLO."""

    shares: Vector
    weights: Vector
    lengths: Vector
    slos: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, demands: Sequence[Demand]) -> "_Tables":
        lengths = np.ones((len(demands), max(len(demand.survival) for demand in demands) + 1))
        for row, demand in enumerate(demands):
            depth = len(demand.survival)
            lengths[row, 1 : depth + 1] += np.cumsum(demand.survival)
            lengths[row, depth + 1 :] = lengths[row, depth]
        return cls(
            np.array([demand.share for demand in demands]),
            np.array([demand.weight for demand in demands]),
            lengths,
            tuple((row, demand.itl_slo_s) for row, demand in enumerate(demands) if demand.itl_slo_s is not None),
        )

    def lengths_at(self, k: Matrix) -> Vector:
        """AL [rows, classes] at K [rows, classes]."""
        found: Vector = self.lengths[np.arange(len(self.shares))[None, :], k]
        return found

    def evaluate(self, n: Vector, k: Matrix, cost: Cost, objective: Objective) -> Yield:
        """See the function of this name."""
        verified = (self.shares * (1 + k)).sum(axis=1)
        width = np.where(self.shares > 0, k, 0).max(axis=1).astype(np.float64)
        return self.yield_of(n, self.lengths_at(k), cost.step_s(n, n * verified, width), objective)

    def yield_of(self, n: Vector, length: Vector, seconds: Vector, objective: Objective) -> Yield:
        """`length` is AL [..., classes]; `n` and `seconds` are broadcast to its leading shape."""
        value = self.weights * self.shares
        goodput = n * (value * length).sum(axis=-1) / seconds
        score = goodput
        if objective is Objective.LATENCY:
            score = value.sum() / (seconds * (value / length).sum(axis=-1))
        if self.slos:
            excess = np.max([seconds / length[..., row] / bound for row, bound in self.slos], axis=0)
            score = np.where(excess <= 1.0 + _EQUAL, score, -excess)
        return Yield(goodput, seconds, score)


def _walk(demands: Sequence[Demand], n: Vector, cost: Cost, objective: Objective) -> Matrix:
    tables = _Tables.of(demands)
    floor = np.array([demand.k_min for demand in demands])
    candidates = sorted(
        (-demand.weight * float(demand.survival[i - 1]), i, column)
        for column, demand in enumerate(demands)
        for i in range(demand.k_min + 1, demand.k_max + 1)
    )
    best_score = np.full(len(n), -np.inf)
    best = np.tile(floor, (len(n), 1))
    for width in range(int(floor.max()), max(demand.k_max for demand in demands) + 1):
        prefixes = [floor]
        for _, i, column in candidates:
            if i <= width:
                longer = prefixes[-1].copy()
                longer[column] = i
                prefixes.append(longer)
        k = np.array(prefixes)
        verified = (tables.shares * (1 + k)).sum(axis=1)
        seconds = cost.step_s(n[:, None], n[:, None] * verified[None, :], float(width))
        score = tables.yield_of(n[:, None], tables.lengths_at(k)[None, :, :], seconds, objective).score
        at = score.argmax(axis=1)
        found = score[np.arange(len(n)), at]
        better = found > best_score
        best_score = np.where(better, found, best_score)
        best[better] = k[at[better]]
    return best


def _improve(demands: Sequence[Demand], n: Vector, k: Matrix, cost: Cost, objective: Objective) -> Matrix:
    tables = _Tables.of(demands)
    k = k.copy()
    rows = np.arange(len(n))
    score = tables.evaluate(n, k, cost, objective).score
    for _ in range(_ROUNDS):
        is_settled = True
        for column, demand in enumerate(demands):
            values = np.arange(demand.k_min, demand.k_max + 1)
            trial = np.repeat(k, len(values), axis=0)
            trial[:, column] = np.tile(values, len(n))
            found = tables.evaluate(np.repeat(n, len(values)), trial, cost, objective).score.reshape(len(n), -1)
            at = found.argmax(axis=1)
            best = found[rows, at]
            better = best > score + np.abs(score) * _GAIN
            if better.any():
                k[better, column] = values[at[better]]
                score = np.where(better, best, score)
                is_settled = False
        if is_settled:
            break
    return k
