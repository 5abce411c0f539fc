"""How likely each draft token is to be accepted, by band and position, as this engine counted it. Pure.

A draft that was verified to depth K says nothing about deeper positions. Trials and accepts are counted per position
and the conditional acceptances multiplied (the product limit of Kaplan and Meier, 1958): exact however K varies.

    a_i = (accepts_i + w p) / (trials_i + w)      S_i = a_1 ... a_i      AL(K) = 1 + S_1 + ... + S_K

p is the band's mean over its positions, itself drawn to the middle of the band; w = `PRIOR_TRIALS`. Counts of the whole
fleet, where a controller sends them, are added as they are: they are few, so that own counts soon outweigh them. Older
counts lose weight with new trials of the same position. Where requests of a band run and no draft of theirs counts,
all of the band's counts lose weight with time: K = 0 would be the last that is ever known of it. First drafts do not
count (`law.law`).
"""

import math
from collections.abc import Collection, Mapping
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from specpilot.engine_adapter.law.tuning import MEMORY_TRIALS, PRIOR_TRIALS, QUIET_S
from specpilot.policy.bands import BAND_EDGES, BANDS
from specpilot.policy.types import FleetAcceptance

Vector = NDArray[np.float64]
_MIDDLES = np.array([(low + high) / 2 for low, high in pairwise((0.0, *BAND_EDGES, 1.0))])


class BandAcceptance:
    """Trials and accepts [bands, positions] of one engine, positions from 1 to `k_max`."""

    def __init__(self, k_max: int) -> None:
        self.trials = np.zeros((BANDS, k_max))
        self.accepts = np.zeros((BANDS, k_max))
        self._fleet = np.zeros_like(self.trials), np.zeros_like(self.accepts)

    def begin_with(self, fleet: FleetAcceptance) -> None:
        """Use the fleet's counts as the prior from now on, in place of those before."""
        tried, accepted = np.zeros_like(self.trials), np.zeros_like(self.accepts)
        k_max = min(self.trials.shape[1], len(fleet.trials[0]))
        tried[:, :k_max] = np.array(fleet.trials)[:, :k_max]
        accepted[:, :k_max] = np.array(fleet.accepts)[:, :k_max]
        self._fleet = tried, accepted

    @property
    def has_prior(self) -> bool:
        """Whether the fleet has tried any position."""
        return bool(self._fleet[0].any())

    def learn(
        self,
        trials: Mapping[tuple[int, int], float],
        accepts: Mapping[tuple[int, int], float],
        ran: Collection[int] = (),
        elapsed_s: float = 0.0,
    ) -> None:
        """Take in what was tried and accepted in `elapsed_s` seconds, by (band, position), and the bands that `ran`."""
        tried, accepted = np.zeros_like(self.trials), np.zeros_like(self.trials)
        for (band, position), count in trials.items():
            if position <= tried.shape[1]:
                tried[band, position - 1] = count
                accepted[band, position - 1] = accepts.get((band, position), 0.0)
        keep = np.exp(-tried / MEMORY_TRIALS)
        quiet = [band for band in ran if not tried[band].any()]
        keep[quiet] = math.exp(-elapsed_s / QUIET_S)
        self.trials = self.trials * keep + tried
        self.accepts = self.accepts * keep + accepted

    def lengths(self) -> Vector:
        """Return AL(K) for K from 0 to `k_max`: [bands, k_max + 1] tokens."""
        weight, (tried, accepted) = PRIOR_TRIALS, self._fleet
        trials, accepts = self.trials + tried, self.accepts + accepted
        mean = (accepts.sum(axis=1) + weight * _MIDDLES) / (trials.sum(axis=1) + weight)
        conditional = (accepts + weight * mean[:, None]) / (trials + weight)
        survival = np.cumprod(conditional, axis=1)
        found: Vector = np.concatenate([np.ones((BANDS, 1)), 1.0 + np.cumsum(survival, axis=1)], axis=1)
        return found
