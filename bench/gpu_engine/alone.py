"""A lock for engines that start side by side, while only one at a time is timed.

Every engine of a check holds the same lock file: shared while it starts, or if its figures need no idle machine;
exclusive while it is timed. So no engine starts, compiles or replies during another's measurement.
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
        """Wait for the exclusive lock and hold it.

        Afterwards the lock is released and not taken again: the engine's process then ends.
        """
        fcntl.flock(self._file, fcntl.LOCK_UN)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            self.close()

    def close(self) -> None:
        """Release the lock."""
        self._file.close()
