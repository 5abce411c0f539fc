"""Estimates the acceptance of draft tokens by band and position from counts, in engines and in the controller.

A draft verified to depth K gives no evidence about deeper positions. Trials and accepts are counted per position, and
the conditional acceptances are multiplied (the product limit of Kaplan and Meier, 1958). This is unbiased for any
sequence of K.

    a_i = (accepts_i + w p) / (trials_i + w)      S_i = a_1 ... a_i      AL(K) = 1 + S_1 + ... + S_K

p is the band's mean over its positions, shrunk towards the middle of the band, so that a band without a draft has an
estimate too; w = `PRIOR_TRIALS`. Deep positions are mostly tried by high bands, so the shape over positions is not
transferred from one band to another. Older counts lose weight with new trials of the same position, not with time.
"""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from specpilot.policy.bands import BAND_EDGES, BANDS

Vector = NDArray[np.float64]
MEMORY_TRIALS = 2000.0
"""Trials of a (band, position) after which older ones have lost 63 % of their weight. A larger value has less noise, a
smaller one follows a changed drafter head sooner; 2,000 was best in the replay of 24,064 drafts."""

PRIOR_TRIALS = 20.0
"""Weight of the band's own mean in each position, and of the middle of the band in that mean; 20 was best in the
replay."""

MIDDLES: Vector = np.array([(low + high) / 2 for low, high in pairwise((0.0, *BAND_EDGES, 1.0))])
"""The conditional acceptance in the middle of each band."""


class BandCounts:
    """Trials and accepts [bands, positions], positions from 1 to `k_max`."""

    def __init__(self, k_max: int) -> None:
        self.trials = np.zeros((BANDS, k_max))
        self.accepts = np.zeros((BANDS, k_max))

    def learn(self, trials: Mapping[tuple[int, int], float], accepts: Mapping[tuple[int, int], float]) -> None:
        """Add new trials and accepts by (band, position); others are ignored."""
        tried, accepted = (_table(counts, self.trials.shape) for counts in (trials, accepts))
        keep = np.exp(-tried / MEMORY_TRIALS)
        self.trials = self.trials * keep + tried
        self.accepts = self.accepts * keep + np.minimum(accepted, tried)

    def conditional(self, prior: "BandCounts | None" = None) -> Vector:
        """Return a_i [bands, k_max], with the counts of `prior` added."""
        trials, accepts = self.trials, self.accepts
        if prior is not None:
            trials, accepts = trials + prior.trials, accepts + prior.accepts
        mean = (accepts.sum(axis=1) + PRIOR_TRIALS * MIDDLES) / (trials.sum(axis=1) + PRIOR_TRIALS)
        acceptance: Vector = (accepts + PRIOR_TRIALS * mean[:, None]) / (trials + PRIOR_TRIALS)
        return acceptance


def lengths(conditional: Vector) -> Vector:
    """Return AL(K) [bands, k_max + 1] for K from 0 on, in tokens, from a_i [bands, k_max]."""
    tokens: Vector = np.ones((len(conditional), conditional.shape[1] + 1))
    tokens[:, 1:] += np.cumsum(np.cumprod(conditional, axis=1), axis=1)
    return tokens


def _table(counts: Mapping[tuple[int, int], float], shape: tuple[int, ...]) -> Vector:
    table, (bands, k_max) = np.zeros(shape), shape
    for (band, position), count in counts.items():
        if 0 <= band < bands and 1 <= position <= k_max:
            table[band, position - 1] = count
    return table
