"""The slowdown factor of a machine: how many times longer than on average its steps of every kind take now.

A noisy neighbour or a lower clock rate affects all steps alike; an error of the cost model affects some. A snapshot at
a new load shows both at once. Their correlations separate them. For a cell of like steps that were measured at time t,
with the content x,

    log seconds = log T(x) + f(x) + d(t) + noise

f, the error of the model T, is similar for steps of similar content at any time; d, the logarithm of the slowdown
factor, is the same for all steps of one time, whatever their content. Both are Gaussian processes of mean 0:

    cov(f, f') = shape_spread_ratio^2 exp(-|x - x'|^2 / 2)     x = (log n, log(m + P), log(1 + D)) / log(near_ratio)
    cov(d, d') = slowdown_spread_ratio^2 exp(-|t - t'| / slowdown_time_s)
    noise      = _STEP_RATIO^2 / steps + _LEAST_RATIO^2 (variance)

and the estimate is the mean of d given all residuals (Rasmussen and Williams, Gaussian Processes for Machine Learning,
2006, equation 2.23). n, m, P and D are those of `step_cost`.

Limits: T is fitted first and absorbs a part of the slowdown, so a change is underestimated: 1.3 as 1.2 when one kind of
steps runs. At a new load that is like no other, only the variances of f and d separate them.
"""

import numpy as np
from numpy.typing import NDArray

from specpilot.controller.tuning import Tuning

Vector = NDArray[np.float64]
_STEP_RATIO = 0.15
_LEAST_RATIO = 0.04


def slowdowns(means: Vector, residuals: Vector, steps: Vector, ages: Vector, tuning: Tuning) -> Vector:
    """Return the logarithm of the slowdown factor [cells + 1] at the time of each cell, then at present.

    `means` [cells, `step_cost.COLUMNS`] is the mean content of the cells' steps, `residuals` [cells] the logarithms of
    their measured seconds over T, `steps` [cells] their number, `ages` [cells] their age in seconds.
    """
    n, m, d, _, p, _ = means.T
    x = np.log(np.maximum(np.column_stack([n, m + p, 1.0 + d]), 0.5)) / np.log(tuning.near_ratio)
    apart = ((x[:, None] - x[None]) ** 2).sum(axis=2)
    between_s = np.abs(np.append(ages, 0.0)[:, None] - ages[None])  # [cells + 1, cells]
    of_time = tuning.slowdown_spread_ratio**2 * np.exp(-between_s / tuning.slowdown_time_s)
    covariance = of_time[:-1] + tuning.shape_spread_ratio**2 * np.exp(-0.5 * apart)
    covariance[np.diag_indices(len(ages))] += _STEP_RATIO**2 / steps + _LEAST_RATIO**2
    found: Vector = of_time @ np.linalg.solve(covariance, residuals)
    return found
