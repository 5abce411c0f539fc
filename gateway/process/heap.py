"""Gives free memory back to the system.

The C library keeps what was freed for the next request, which with bodies of all sizes grows for hours though nothing
is held: after trimming, a process that has run for an hour is as large as one that has run for minutes.
"""

import ctypes
from collections.abc import Callable


def trimmer() -> Callable[[], None]:
    """Return what gives free memory back; it does nothing where the C library cannot.

    It takes a millisecond for some 15 MB that go back, in which nothing else runs: called often, it finds little.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return (lambda: None) if trim is None else lambda: trim(0)
