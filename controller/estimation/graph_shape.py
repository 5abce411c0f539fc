"""The shape of a step on an engine with CUDA graphs: its padded size, and whether it has a graph.

A step of n decodes, m tokens to verify and P prefilled ones runs as

    FULL graph          without prefill, if all decodes have q = m / n positions and q has sizes: the next one from m on
    FULL, any length    without prefill, where the engine has graphs of variable length: the next size from m on
    piecewise graphs    else, the next size from m + P on (FULL ones where the engine's mode is `FULL`)
    without a graph     beyond the largest size, unpadded

A drafter that lays out its slots D in one pass runs over the verified drafts and the slots, m - n + D + P tokens, by
the same rules. Only averages of steps are known, so `Shape` has expected sizes and the shares of each kind of step:

- of a mix of K, drawn independently for each of n requests with shares p_K (`of_mix`): all have the same K with
  probability p_K^n, and otherwise m has the variance n Var(K), approximated by five points;
- of steps that were measured together (`of_cell`): a step in which not all decodes have q positions differs from n q by
  one token or more, so the share of such steps is at most |m - n q|; their place within the cell stays unknown.

Prefill differs from step to step by about half its mean.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specpilot.policy.graphs import Graphs

Vector = NDArray[np.float64]
_POINTS = np.array([-1.4, -0.53, 0.0, 0.53, 1.4])  # a normal distribution's fifths, in standard deviations
_PREFILL_SPREAD = 0.5
_CELLS_PER_OCTAVE = 4.0  # as the engine rounds verified tokens; finer up to 8
_EXACT = 1e-6
FULL_MODE = "FULL"


class Shape(NamedTuple):
    """A step with padding: `tokens` of the target's pass, `slots` of the drafter's.

    `piecewise` and `graphless` are the shares (0..1) of such steps of the target, `drafter_graphless` of the drafter's.
    """

    tokens: Vector
    slots: Vector
    piecewise: Vector
    graphless: Vector
    drafter_graphless: Vector


class Step(NamedTuple):
    """The content of a step before padding, or the mean of several; `runs` is the probability of a drafter's pass."""

    decodes: Vector
    verified: Vector
    slots: Vector
    prefill: Vector
    runs: Vector


def unpadded(step: Step) -> Shape:
    """Return the shape of a step on an engine without graphs: no padding, and no missing graph."""
    none = np.zeros(())
    return Shape(step.verified + step.prefill, step.slots, none, none, none)


def of_cell(graphs: Graphs, step: Step) -> Shape:
    """Return the shape of steps that were measured together, or that all have the same K."""
    n, m = np.maximum(step.decodes, 1.0), step.verified

    def share(length: float | Vector) -> Vector:
        found: Vector = np.maximum(0.0, 1.0 - np.abs(m - n * length)) * (step.prefill == 0)
        return found

    width = np.where(m > 8, 2.0 ** np.floor(np.log2(np.maximum(m, 1.0))) / _CELLS_PER_OCTAVE, 0.0)  # noqa: PLR2004
    spread = (1.0 - share(np.round(m / n))) * width / np.sqrt(12.0)
    return _shape(graphs, step, share, spread)


def of_mix(graphs: Graphs, step: Step, shares: Vector) -> Shape:
    """Return the expected shape of steps whose requests have each K with probability `shares` [..., K_max + 1]."""
    n, depths = step.decodes, np.arange(shares.shape[-1])
    variance = (shares * depths**2).sum(axis=-1) - (shares * depths).sum(axis=-1) ** 2

    def share(length: float | Vector) -> Vector:
        k = int(length) - 1
        alike = shares[..., k] ** n if k < shares.shape[-1] else np.zeros(())
        found: Vector = alike * (step.prefill == 0)
        return found

    return _shape(graphs, step, share, np.sqrt(n * np.maximum(variance, 0.0)))


def cliffs(graphs: Graphs, k_max: int) -> set[int]:
    """Return the numbers of decodes from which on some uniform K loses a graph of the target or of the drafter."""
    found = set()
    for k in range(k_max + 1):
        kinds = (graphs.mixed, graphs.varlen, graphs.uniform.get(1 + k, ()))
        largest = [max(sizes, default=0) for sizes in kinds]
        found |= {size // (1 + k) + 1 for size in largest if size}
        if k and graphs.drafter:
            found.add(max(graphs.drafter) // (2 * k) + 1)
    return found


def _shape(graphs: Graphs, step: Step, share_of: Callable[[float], Vector], spread: Vector) -> Shape:
    """Return the shape of a step: uniform with probability `share_of` a query length, else tokens vary by `spread`."""
    n, m, p = step.decodes, step.verified, step.prefill
    left, full = np.ones(()), np.zeros(())
    rest = m + p
    for length, sizes in graphs.uniform.items():
        tokens = n * length
        padded, has_graph = _padded(sizes, tokens)
        share = share_of(length) * has_graph
        left, full, rest = left - share, full + share * padded, rest - share * tokens
    left = np.clip(left, 0.0, 1.0)
    mean = np.where(left > _EXACT, np.maximum(rest, 0.0) / np.maximum(left, _EXACT), 0.0)
    wide = np.sqrt(spread**2 + (_PREFILL_SPREAD * p) ** 2)
    padded, has_graph = _expected(graphs.mixed, mean, wide)
    has_pieces = np.zeros_like(has_graph) if graphs.mode == FULL_MODE else has_graph
    if graphs.varlen:
        laid_out, fits = _expected(graphs.varlen, mean, wide)
        fits *= p == 0
        padded = np.where(p == 0, laid_out * fits + padded * (1.0 - fits), padded)
        has_graph, has_pieces = np.maximum(has_graph, fits), has_pieces * (1.0 - fits)
    piecewise = left * has_pieces
    slots, drafter_graphless = step.slots, np.zeros(())
    if graphs.drafter:
        runs = step.runs
        drafted = np.maximum(m - n, 0.0) + step.slots / np.maximum(runs, _EXACT) + p
        laid_out, drafter_has = _expected(graphs.drafter, drafted, wide)
        slots = step.slots + runs * (laid_out - drafted)
        drafter_graphless = runs * (1.0 - drafter_has)
    return Shape(full + left * padded, slots, piecewise, left * (1.0 - has_graph), drafter_graphless)


def _expected(sizes: tuple[int, ...], mean: Vector, spread: Vector) -> tuple[Vector, Vector]:
    """Return the mean padded size of passes of `mean` tokens that vary by `spread`, and the share with a graph."""
    points = np.maximum(mean[..., None] + spread[..., None] * _POINTS, 0.0)
    padded, has_graph = _padded(sizes, points)
    return padded.mean(axis=-1), has_graph.mean(axis=-1)


def _padded(sizes: tuple[int, ...], tokens: Vector) -> tuple[Vector, Vector]:
    """Return the padded size of `tokens`, and whether there is a graph of it (1 or 0)."""
    if not sizes:
        return tokens, np.zeros_like(tokens)
    ladder = np.array(sizes, dtype=np.float64)
    place = np.searchsorted(ladder, tokens - _EXACT)
    has_graph = place < len(ladder)
    return np.where(has_graph, ladder[np.minimum(place, len(ladder) - 1)], tokens), has_graph.astype(np.float64)
