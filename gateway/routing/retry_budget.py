"""The retry budget: bounds the number of retries. Pure: `now` is monotonic seconds.

Each request adds to the budget, and so does time (a small floor); each retry takes from it. So retries cannot double
the load of a failing fleet. The budget of the last `SAVED_S` can accumulate, because all requests of an engine that
dies fail at once.
"""

import math
from typing import Final

SAVED_S: Final = 60.0
"""Seconds over which the budget can accumulate."""


class RetryBudget:
    """Allows `ratio` retries per request, and `floor_per_s` a second besides.

    The balance is at most `burst` plus `ratio` times the requests of the last `SAVED_S`, counted with exponential
    decay.
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
        """Whether there is a retry to `spend`."""
        self._settle(now)
        return self._balance >= 1.0

    def spend(self, now: float) -> bool:
        """Spend one retry; return `False` when there is none."""
        if not self.allows(now):
            return False
        self._balance -= 1.0
        return True

    def _settle(self, now: float) -> None:
        """Bring the balance up to `now`: add the floor, and let old requests decay."""
        elapsed_s = 0.0 if self._at is None else max(0.0, now - self._at)
        self._at = now
        self._recent *= math.exp(-elapsed_s / SAVED_S)
        most = self._burst + self._ratio * self._recent
        self._balance = min(most, self._balance + self._floor_per_s * elapsed_s)
