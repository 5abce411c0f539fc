"""Short holds of Python's global interpreter lock (GIL) by a thread that computes beside the engine's steps.

The engine's thread holds the lock while it prepares a step. When it wants the lock and another thread computes, it
waits until that thread sleeps, reads a file or 5 ms have passed (`sys.setswitchinterval`). A call without waiting, such
as `time.sleep(0)`, often takes the lock again before the waiting thread has woken.
"""

import time

HOLD_S = 0.0001
"""Seconds of computation after which the next call sleeps. A hold is longer by the part that ends it: up to 0.4 ms, in
the choice of K."""

SLEEP_S = 0.0002
"""Seconds in which a thread that waits for the lock can take it. A thread wakes within 0.1 ms on an idle core."""


class ShortHolds:
    """Called between two parts of a computation: sleeps if the thread has computed for `HOLD_S` since its last sleep.

    For one thread.
    """

    def __init__(self) -> None:
        self._slept_at = 0.0

    def __call__(self) -> None:
        """Sleep if it is due."""
        if time.perf_counter() - self._slept_at >= HOLD_S:
            time.sleep(SLEEP_S)
            self._slept_at = time.perf_counter()
