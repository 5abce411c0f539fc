"""The slope of a series of readings with a confidence interval, for memory that must stay flat.

Successive readings of one process are correlated, so the interval of a line through all of them would be far too
narrow. They are grouped into `GROUPS` stretches of time; the line and its interval come from the stretches' medians.
"""

import statistics
from collections.abc import Sequence

GROUPS = 8
_T_95 = 2.447
"""Student's t for a two-sided 95 % interval with `GROUPS - 2` degrees of freedom."""


def slope(readings: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """Return slope and the bounds of its 95 % interval (low, slope, high) of `readings` (minutes, MiB), in order.

    The first quarter is warm-up. With too few readings for groups of two the bounds are infinite.
    """
    settled = readings[len(readings) // 4 :]
    if len(settled) < 2 * GROUPS:
        return float("-inf"), 0.0, float("inf")
    size = len(settled) // GROUPS
    groups = [settled[len(settled) - (GROUPS - i) * size :][:size] for i in range(GROUPS)]
    x = [statistics.fmean(minutes for minutes, _ in group) for group in groups]
    y = [statistics.median(mib for _, mib in group) for group in groups]
    middle, base = statistics.linear_regression(x, y)
    residual = sum((b - base - middle * a) ** 2 for a, b in zip(x, y, strict=True))
    spread = sum((a - statistics.fmean(x)) ** 2 for a in x)
    half = _T_95 * (residual / (GROUPS - 2) / spread) ** 0.5
    return middle - half, middle, middle + half
