"""Time as an argument, so that decisions can be replayed and tests need not sleep."""

import time
from datetime import UTC, datetime
from typing import Protocol


def utc(at: float) -> str:
    """Return Unix seconds as a time for people, `2026-01-31 12:00:00Z`."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


class Clock(Protocol):
    """A program's source of time."""

    def now(self) -> float:
        """Wall-clock time in Unix seconds. May step; use it only for time stamps in documents and logs."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary origin. Never decreases; use it for every duration."""

    def sleep(self, duration_s: float) -> None:
        """Wait for `duration_s` seconds."""


class SystemClock:
    """The machine's clock. `now` and `monotonic` are the standard library's own: no call in between."""

    def __init__(self) -> None:
        self.now = time.time
        self.monotonic = time.monotonic

    def sleep(self, duration_s: float) -> None:
        """Block the calling thread."""
        time.sleep(duration_s)
