"""Finds out what nobody knows: tries a depth for a moment, seldom, where it may pay.

Two kinds of ignorance. A cost model that never saw K = 0, or never saw drafting, cannot say what it would cost, and a
model that never drafted has no acceptance: then every missing depth is tried. And a cost that was measured at another
load is an extrapolation: then a depth is tried at the present load if its predicted goodput is at most
`explore_slack_ratio` below the best one's, so that no wrong extrapolation can confirm itself for ever; but not while
the load is just changing.

Only in mode `act` and inside the policy's bounds, every class gets the depth until the pool has done `cost_band_steps`
steps of it (a fraction of a second under load), at most `explore_limit_s`. A depth that was measured at about this load
counts as known for `explore_again_s` of traffic. One that would not come (engines that do not follow, a load that left
before) is not asked for again for fifteen times as long as it would have been waited for.
"""

import math
from collections.abc import Sequence

from controller.tuning import Tuning

_REST_FACTOR = 15.0
_STEADY = 1.3


class Explorer:
    """What is being tried in one pool, and what was tried in vain."""

    def __init__(self, tuning: Tuning) -> None:
        self._tuning = tuning
        self._trying: tuple[int, int] | None = None
        self._since = 0.0
        self._gave_up: dict[tuple[int, int], float] = {}
        self._decodes: float | None = None
        self.is_steady = False
        """Whether the newest look saw about as many running decodes as the one before."""

    def look(self, decodes: float) -> None:
        """Take in how many running decodes the newest look saw."""
        before, self._decodes = self._decodes, decodes
        self.is_steady = before is not None and max(before, decodes) <= _STEADY * min(before, decodes)

    def next_depth(self, missing: Sequence[int], decodes: float, now: float) -> int | None:
        """Return the depth to try at `now`, the first of `missing` that was not tried in vain; `None` for none."""
        limit_s = self._tuning.explore_limit_s
        octave = round(math.log2(max(decodes, 1.0)))
        if self._trying is not None:
            depth, at = self._trying
            if at == octave and depth in missing and now - self._since < limit_s:
                return depth
            if at != octave or depth in missing:
                self._gave_up[self._trying] = now
        self._trying = None
        for k in missing:
            if now - self._gave_up.get((k, octave), -math.inf) >= _REST_FACTOR * limit_s:
                self._trying, self._since = (k, octave), now
                return k
        return None
