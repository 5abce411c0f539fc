"""How likely each draft token is to be accepted, by band and position, as this engine counted it. Pure.

If a controller sends the counts of all engines of the model (the fleet), they are added to the engine's own. They are
at most 200 trials per position, so the engine's own counts soon outweigh them. The engine's own counts do not contain
drafts whose K was chosen before any draft of their request was verified (`law.law`).
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
        """Replace the prior by these counts of the fleet."""
        counts = BandCounts(self.trials.shape[1])
        k_max = min(counts.trials.shape[1], len(fleet.trials[0]))
        counts.trials[:, :k_max] = np.array(fleet.trials)[:, :k_max]
        counts.accepts[:, :k_max] = np.array(fleet.accepts)[:, :k_max]
        self._fleet = counts

    @property
    def has_prior(self) -> bool:
        """Whether the prior has any trial."""
        return bool(self._fleet.trials.any())

    def lengths(self) -> NDArray[np.float64]:
        """Return AL(K) for K from 0 to `k_max`: [bands, k_max + 1] tokens."""
        return lengths(self.conditional(self._fleet))
