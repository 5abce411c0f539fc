"""Returns free memory to the system.

The C library keeps freed memory for later requests. With bodies of all sizes this reserve grows for hours although the
memory is not used. With trimming, a process is as large after an hour as after minutes.
"""

import ctypes
from collections.abc import Callable


def trimmer() -> Callable[[], None]:
    """Return a function that returns free memory to the system; it does nothing if the C library cannot.

    A call takes a millisecond for some 15 MB and blocks the process. Frequent calls find little to return.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return (lambda: None) if trim is None else lambda: trim(0)
