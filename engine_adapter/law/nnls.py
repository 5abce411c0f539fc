"""Least squares with coefficients that may not be negative (Lawson and Hanson 1974, chapter 23).

Works on the normal equations: the problems here have some thirty unknowns and are regularised, so squaring the
condition number does no harm, and the cost of an iteration does not grow with the number of measurements. The system of
an iteration is below the size from which a BLAS library uses threads of its own.

The iteration may start at any x >= 0. The result is the same, because the minimum is unique; near the minimum one or
two systems are solved instead of one for each coefficient.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
_SLACK = 1e-10


def solve(gram: Vector, projected: Vector, start: Vector, between: Callable[[], None] = lambda: None) -> Vector:
    """Return x >= 0 that minimises x gram x / 2 - projected x, with positive definite `gram`, from x = `start` on.

    `between` is called between two parts of the computation.
    """
    size = len(projected)
    x, free = start, start > 0
    tolerance = _SLACK * max(1.0, float(np.abs(projected).max(initial=0.0)))
    for _ in range(4 * size):
        while free.any():  # to the minimum over the free coefficients
            between()
            trial = np.zeros(size)
            trial[free] = np.linalg.solve(gram[np.ix_(free, free)], projected[free])
            if trial[free].min() > 0:
                x = trial
                break
            falling = free & (trial <= 0)
            span = x[falling] - trial[falling]
            step = float(np.min(np.where(span > 0, x[falling] / np.where(span > 0, span, 1.0), 0.0)))
            x = x + step * (trial - x)
            x[falling & (x <= _SLACK * max(1.0, float(x.max())))] = 0.0
            free &= x > 0
        gradient = projected - gram @ x
        gradient[free] = -np.inf
        best = int(gradient.argmax())
        if gradient[best] <= tolerance:
            break
        free[best] = True
    return x
