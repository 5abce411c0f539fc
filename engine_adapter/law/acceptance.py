"""How likely each draft token is to be accepted, by band and position, as this engine counted it. Pure.

Counts of the whole fleet, where a controller sends them, are added as they are: they are few, so that own counts soon
outweigh them. First drafts do not count (`law.law`).
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from specpilot.policy.acceptance import BandCounts, lengths
from specpilot.policy.schedule import FleetAcceptance

Vector = NDArray[np.float64]


class BandAcceptance:
    """The counts of one engine of this `k_max`, and those of the fleet."""

    def __init__(self, k_max: int) -> None:
        self._own = BandCounts(k_max)
        self._fleet = BandCounts(k_max)

    def begin_with(self, fleet: FleetAcceptance) -> None:
        """Use the fleet's counts as the prior from now on, in place of those before."""
        found = BandCounts(self._own.trials.shape[1])
        k_max = min(found.trials.shape[1], len(fleet.trials[0]))
        found.trials[:, :k_max] = np.array(fleet.trials)[:, :k_max]
        found.accepts[:, :k_max] = np.array(fleet.accepts)[:, :k_max]
        self._fleet = found

    @property
    def has_prior(self) -> bool:
        """Whether the fleet has tried any position."""
        return bool(self._fleet.trials.any())

    def learn(self, trials: Mapping[tuple[int, int], float], accepts: Mapping[tuple[int, int], float]) -> None:
        """Take in what was tried and accepted, by (band, position)."""
        self._own.learn(trials, accepts)

    def lengths(self) -> Vector:
        """Return AL(K) for K from 0 to `k_max`: [bands, k_max + 1] tokens."""
        return lengths(self._own.conditional(self._fleet))
