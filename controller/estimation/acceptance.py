"""The acceptance of one model's draft tokens by band and position, from all its engines together.

A draft that was verified to depth K is a trial of the positions up to K and none of deeper ones. So the product of the
conditional acceptances a_i, from trials and accepts per position (the product limit of Kaplan and Meier 1958), is
unbiased however K varies:

    a_i = (accepts_i + w p) / (trials_i + w)          w = `prior_trials`
    S_i = a_1 ... a_i                                  AL(K) = 1 + S_1 + ... + S_K

p is the band's mean over all its positions, shrunk towards the middle of the band: a band is the interval of a
request's own conditional acceptance, so even a band without a draft has a rough estimate. Deep positions are mostly
tried by high bands, so no shape is carried over from one band to another.

Older counts lose weight with new trials of the same position, not with time. There is no change detector: when the
traffic changes, requests move to other bands, and the acceptance of a band stays.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specpilot.controller.tuning import Tuning
from specpilot.policy.bands import BAND_EDGES, BANDS
from specpilot.policy.types import K_LIMIT, FleetAcceptance

Vector = NDArray[np.float64]
FLEET_TRIALS = 200.0
"""Trials of a position at most that engines get as a prior: an engine's own counts outweigh it within seconds."""
_DIGITS = 1
_BOUNDS = (0.0, *BAND_EDGES, 1.0)
MIDDLES: Vector = np.array([(low + high) / 2 for low, high in pairwise(_BOUNDS)])
"""The conditional acceptance in the middle of each band."""


class ModelAcceptance:
    """The counts of one model's drafts: trials and accepts [bands, positions]."""

    def __init__(self, tuning: Tuning | None = None) -> None:
        self._tuning = tuning or Tuning()
        self._trials = np.zeros((BANDS, K_LIMIT))
        self._accepts = np.zeros((BANDS, K_LIMIT))

    def learn(self, trials: Mapping[tuple[int, int], float], accepts: Mapping[tuple[int, int], float]) -> None:
        """Add new trials and accepts by (band, position)."""
        tried = _table(trials)
        keep = np.exp(-tried / self._tuning.memory_trials)
        self._trials = self._trials * keep + tried
        self._accepts = self._accepts * keep + np.minimum(_table(accepts), tried)

    def conditional(self, k_max: int) -> Vector:
        """Return a_i [bands, k_max]."""
        weight = self._tuning.prior_trials
        mean = (self._accepts.sum(axis=1) + weight * MIDDLES) / (self._trials.sum(axis=1) + weight)
        accepts, trials = self._accepts[:, :k_max], self._trials[:, :k_max]
        found: Vector = (accepts + weight * mean[:, None]) / (trials + weight)
        return found

    def lengths(self, k_max: int) -> Vector:
        """Return AL(K) for K from 0 to `k_max`: [bands, k_max + 1] tokens."""
        survival = np.cumprod(self.conditional(k_max), axis=1)
        found: Vector = 1.0 + np.concatenate([np.zeros((BANDS, 1)), np.cumsum(survival, axis=1)], axis=1)
        return found

    def shared(self) -> FleetAcceptance | None:
        """Return the counts as a prior for engines, `FLEET_TRIALS` a position at most; `None` before any draft."""
        deepest = int(self._trials.any(axis=0).sum())
        if not deepest:
            return None
        trials, accepts = self._trials[:, :deepest], self._accepts[:, :deepest]
        share = np.minimum(1.0, FLEET_TRIALS / np.maximum(trials, 1e-9))
        tried, accepted = (np.round(counts * share, _DIGITS).tolist() for counts in (trials, accepts))
        return FleetAcceptance(tuple(map(tuple, tried)), tuple(map(tuple, accepted)))

    def described(self, k_max: int) -> list[dict[str, Any]]:
        """Return the numbers of each band as plain data; a band without a draft has none, as it has only its prior."""
        conditional = self.conditional(k_max)
        survival = np.cumprod(conditional, axis=1)
        return [
            {
                "acceptance": conditional[band].tolist(),
                "survival": survival[band].tolist(),
                "trials": self._trials[band, :k_max].tolist(),
            }
            if self._trials[band, 0] >= 1
            else {}
            for band in range(BANDS)
        ]


def _table(counts: Mapping[tuple[int, int], float]) -> Vector:
    table = np.zeros((BANDS, K_LIMIT))
    for (band, position), count in counts.items():
        if 0 <= band < BANDS and 1 <= position <= K_LIMIT:
            table[band, position - 1] = count
    return table
