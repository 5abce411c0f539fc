"""Least squares with coefficients that may not be negative (Lawson and Hanson 1974, chapter 23).

Works on the normal equations: the problems here have some thirty unknowns and are regularised, so squaring the
condition number does no harm, and the cost of an iteration does not grow with the number of measurements.
"""

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
_SLACK = 1e-10


def solve(rows: NDArray[np.float64], target: Vector) -> Vector:
    """Return x >= 0 that minimises |rows x - target|."""
    gram = rows.T @ rows
    projected = rows.T @ target
    size = len(projected)
    x = np.zeros(size)
    free = np.zeros(size, dtype=bool)
    tolerance = _SLACK * max(1.0, float(np.abs(projected).max(initial=0.0)))
    for _ in range(4 * size):
        gradient = projected - gram @ x
        gradient[free] = -np.inf
        best = int(gradient.argmax())
        if gradient[best] <= tolerance:
            break
        free[best] = True
        while True:
            trial = np.zeros(size)
            trial[free] = np.linalg.lstsq(gram[np.ix_(free, free)], projected[free], rcond=None)[0]
            if trial[free].min() > 0:
                x = trial
                break
            falling = free & (trial <= 0)
            span = x[falling] - trial[falling]
            step = float(np.min(np.where(span > 0, x[falling] / np.where(span > 0, span, 1.0), 0.0)))
            x = x + step * (trial - x)
            x[falling & (x <= _SLACK * max(1.0, float(x.max())))] = 0.0
            free &= x > 0
            if not free.any():
                x = np.zeros(size)
                break
    return x
