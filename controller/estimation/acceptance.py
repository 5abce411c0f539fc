"""The acceptance of one model's draft tokens by band and position, from all its engines together.

There is no change detector: when the traffic changes, requests move to other bands, and the acceptance of a band stays.
"""

from typing import Any

import numpy as np

from specpilot.policy.acceptance import BandCounts
from specpilot.policy.bands import BANDS
from specpilot.policy.names import K_LIMIT
from specpilot.policy.schedule import FleetAcceptance

FLEET_TRIALS = 200.0
"""Largest number of trials of a position in the prior for engines: an engine's own counts outweigh it within
seconds."""
_DIGITS = 1


class ModelAcceptance(BandCounts):
    """The counts of one model's drafts."""

    def __init__(self) -> None:
        super().__init__(K_LIMIT)

    def shared(self) -> FleetAcceptance | None:
        """Return the counts as a prior for engines, at most `FLEET_TRIALS` per position; `None` before any draft."""
        deepest = int(self.trials.any(axis=0).sum())
        if not deepest:
            return None
        trials, accepts = self.trials[:, :deepest], self.accepts[:, :deepest]
        share = np.minimum(1.0, FLEET_TRIALS / np.maximum(trials, 1e-9))
        tried, accepted = (np.round(counts * share, _DIGITS).tolist() for counts in (trials, accepts))
        return FleetAcceptance(tuple(map(tuple, tried)), tuple(map(tuple, accepted)))

    def described(self, k_max: int) -> list[dict[str, Any]]:
        """Return the numbers of each band as plain data; `{}` for a band without a draft, which has only a prior."""
        conditional = self.conditional()[:, :k_max]
        survival = np.cumprod(conditional, axis=1)
        return [
            {
                "acceptance": conditional[band].tolist(),
                "survival": survival[band].tolist(),
                "trials": self.trials[band, :k_max].tolist(),
            }
            if self.trials[band, 0] >= 1
            else {}
            for band in range(BANDS)
        ]
