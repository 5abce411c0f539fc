"""The pace of a machine: by how much its steps of every kind take longer now than they do on average.

A noisy neighbour, or a clock that was lowered, strikes all steps alike; a cost whose form does not fit strikes some. A
look at a load that was never seen shows both at once. They are told apart by how they hold together. For a cell of like
steps that were measured at time t, with x what was in them,

    log seconds = log T(x) + f(x) + d(t) + noise

f, what the form of T misses, is alike for steps that are alike, whenever they ran; d, the logarithm of the pace, is the
same for all steps of one time, whatever was in them. Both are Gaussian processes of mean 0:

    cov(f, f') = shape_spread_ratio^2 exp(-|x - x'|^2 / 2)     x = (log n, log(m + P), log(1 + D)) / log(near_ratio)
    cov(d, d') = pace_spread_ratio^2 exp(-|t - t'| / pace_time_s)
    noise      = _STEP_RATIO^2 / steps + _LEAST_RATIO^2 (variance)

and what is wanted are the means of d given all residuals (Rasmussen and Williams, Gaussian Processes for Machine
Learning, 2006, equation 2.23). n, m, P and D are those of `step_cost`.

Limits: T is fitted first and takes in some of the pace, so a change is seen somewhat too small: 1.3 as 1.2, where one
kind of steps runs. At a load that is new and like no other, nothing tells f from d but their variances.
"""

import numpy as np
from numpy.typing import NDArray

from specpilot.controller.tuning import Tuning

Vector = NDArray[np.float64]
_STEP_RATIO = 0.15
_LEAST_RATIO = 0.04


def paces(means: Vector, residuals: Vector, steps: Vector, ages: Vector, tuning: Tuning) -> Vector:
    """Return the logarithm of the pace [cells + 1] at the time of each cell, then at present.

    `means` [cells, `step_cost.COLUMNS`] is what was in the cells' steps, `residuals` [cells] the logarithms of what
    these took over what T says, `steps` [cells] how many were measured, `ages` [cells] how long ago, in seconds.
    """
    n, m, d, _, p, _ = means.T
    x = np.log(np.maximum(np.column_stack([n, m + p, 1.0 + d]), 0.5)) / np.log(tuning.near_ratio)
    apart = ((x[:, None] - x[None]) ** 2).sum(axis=2)
    between_s = np.abs(np.append(ages, 0.0)[:, None] - ages[None])  # [cells + 1, cells]
    pace = tuning.pace_spread_ratio**2 * np.exp(-between_s / tuning.pace_time_s)
    covariance = pace[:-1] + tuning.shape_spread_ratio**2 * np.exp(-0.5 * apart)
    covariance[np.diag_indices(len(ages))] += _STEP_RATIO**2 / steps + _LEAST_RATIO**2
    found: Vector = pace @ np.linalg.solve(covariance, residuals)
    return found
