"""Engines start side by side, and one at a time is timed.

Every engine of a check holds the same lock file: shared while it starts, or where its figures need no quiet machine;
exclusively while it is timed. So nothing starts, compiles or replies beside a measurement.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Quiet:
    """One engine's hold on the lock file at `path`; shared from the start."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a")
        fcntl.flock(self._file, fcntl.LOCK_SH)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until no other engine holds the lock, and keep them all waiting meanwhile.

        Afterwards nothing is held: the engine's process has only its end before it.
        """
        fcntl.flock(self._file, fcntl.LOCK_UN)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            self.close()

    def close(self) -> None:
        """Hold the lock no more."""
        self._file.close()
