"""Whether two samples of tokens are of one distribution: a two-sample chi-square, in standard deviations."""

from collections import Counter
from typing import Any

import numpy as np

FEWEST = 8
SIGMAS = 4.5
"""A chi-square statistic this many standard deviations above its mean has a chance of about 1 in 10,000."""


def sigmas(mine: Counter[Any], theirs: Counter[Any], draws: int) -> float:
    """How many standard deviations the statistic of two samples of so many `draws` lies above its mean.

    Rare tokens count as one.
    """
    tokens = [token for token in mine | theirs if mine[token] + theirs[token] >= 2 * FEWEST]
    counts = np.array([[sample[token] for token in tokens] for sample in (mine, theirs)], dtype=float)
    rest = draws - counts.sum(axis=1)
    if rest.sum() > 0:
        counts = np.column_stack([counts, rest])
    expected = counts.sum(axis=0) / 2
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = counts.shape[1] - 1
    return float((statistic - freedom) / np.sqrt(2 * freedom)) if freedom else 0.0
