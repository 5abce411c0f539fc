"""How likely each draft token is to be accepted, by band and position, as this engine counted it. Pure.

Counts of the whole fleet, where a controller sends them, are added as they are: they are few, so that own counts soon
outweigh them. First drafts do not count (`law.law`).
"""

import numpy as np
from numpy.typing import NDArray

from specpilot.policy.acceptance import BandCounts, lengths
from specpilot.policy.schedule import FleetAcceptance


class BandAcceptance(BandCounts):
    """The counts of one engine of this `k_max`, and those of the fleet."""

    def __init__(self, k_max: int) -> None:
        super().__init__(k_max)
        self._fleet = BandCounts(k_max)

    def begin_with(self, fleet: FleetAcceptance) -> None:
        """Use the fleet's counts as the prior from now on, in place of those before."""
        found = BandCounts(self.trials.shape[1])
        k_max = min(found.trials.shape[1], len(fleet.trials[0]))
        found.trials[:, :k_max] = np.array(fleet.trials)[:, :k_max]
        found.accepts[:, :k_max] = np.array(fleet.accepts)[:, :k_max]
        self._fleet = found

    @property
    def has_prior(self) -> bool:
        """Whether the fleet has tried any position."""
        return bool(self._fleet.trials.any())

    def lengths(self) -> NDArray[np.float64]:
        """Return AL(K) for K from 0 to `k_max`: [bands, k_max + 1] tokens."""
        return lengths(self.conditional(self._fleet))
