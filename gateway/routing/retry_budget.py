"""How many requests may be tried a second time. Pure: `now` is monotonic seconds.

Retries spend from a budget: a share of the requests plus a small floor, so that retries cannot double the load of
a fleet that fails. What the requests of `SAVED_S` earned can be saved up, because an engine that dies fails at once all
that has gathered on it.
"""

import math
from typing import Final

SAVED_S: Final = 60.0
"""Seconds over which earned retries can be saved up."""


class RetryBudget:
    """Retries allowed: `ratio` of the requests, and `floor_per_s` a second besides.

    Saved up are at most `burst`, and `ratio` of the requests of the last `SAVED_S` (counted with exponential decay).
    """

    def __init__(self, ratio: float = 0.1, floor_per_s: float = 1.0, burst: float = 10.0) -> None:
        """`ratio` is 0..1."""
        self._ratio = ratio
        self._floor_per_s = floor_per_s
        self._burst = burst
        self._balance = burst
        self._recent = 0.0
        self._at: float | None = None

    def earn(self, now: float) -> None:
        """A request came in."""
        self._settle(now)
        self._recent += 1.0
        self._balance += self._ratio

    def allows(self, now: float) -> bool:
        """Whether there is a retry left to `spend`."""
        self._settle(now)
        return self._balance >= 1.0

    def spend(self, now: float) -> bool:
        """Take one retry out; `False` when there is none left."""
        if not self.allows(now):
            return False
        self._balance -= 1.0
        return True

    def _settle(self, now: float) -> None:
        """Let the time since the last call count: the floor earns, and requests are forgotten."""
        elapsed_s = 0.0 if self._at is None else max(0.0, now - self._at)
        self._at = now
        self._recent *= math.exp(-elapsed_s / SAVED_S)
        most = self._burst + self._ratio * self._recent
        self._balance = min(most, self._balance + self._floor_per_s * elapsed_s)
