"""A program whose wall clock can be stepped while it runs, without touching the machine's.

A few lines of C (`native/stepped_clock.c`), loaded before the C library, add the number of seconds in a file to every
reading of the wall clock. The monotonic clock stays, as it does when an administrator or a time server steps a real
clock.
"""

import os
import struct
from collections.abc import Mapping
from pathlib import Path

from specpilot.bench.native.build import build

_SECONDS = struct.Struct("q")


class SteppedClock:
    """The step, in seconds, of every program that was started with `environment`."""

    def __init__(self, folder: Path) -> None:
        """Compile into `folder`. Raises `FileNotFoundError` without a C compiler."""
        self._library = build("stepped_clock", folder / "stepped_clock.so", "-shared", "-fPIC", "-ldl")
        self._file = folder / "stepped_clock.seconds"
        self.step(0)

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables to add to the environment of a program."""
        return {"LD_PRELOAD": str(self._library.resolve()), "STEPPED_CLOCK": str(self._file.resolve())}

    def step(self, seconds: int) -> None:
        """Set the wall clock `seconds` off the true one, from now on."""
        handle = os.open(self._file, os.O_RDWR | os.O_CREAT)
        try:
            os.pwrite(handle, _SECONDS.pack(seconds), 0)
        finally:
            os.close(handle)
