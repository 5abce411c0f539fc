"""The present speed of this processor: the time of a fixed Python loop.

The host's share of a step is Python. A virtual machine's processor may run a third slower for some seconds, which makes
a cell slow for a reason outside the engine. So the loop is timed before and after each cell.
"""

import statistics
import time
from collections.abc import Sequence

LOOP = 20_000
"""Iterations of the loop: about 1 ms. Fewer are lost in interrupts, more take time from the cells."""

TIMES = 5
"""Loops in one probe; the median counts, so that one interrupt does not."""

TOLERANCE_RATIO = 0.1
"""Largest relative difference of a cell's probe from the median of all: cells of one machine repeat within 3 %, and its
two speeds differed by 32 % (one H200, 2026-11-26)."""


def probe_ms() -> float:
    """Return the median milliseconds of the fixed loop."""
    times = []
    for _ in range(TIMES):
        total, began = 0, time.perf_counter()
        for number in range(LOOP):
            total += number & 7
        times.append(time.perf_counter() - began)
    return 1e3 * statistics.median(times)


def is_typical(pace_ms: float, all_paces_ms: Sequence[float]) -> bool:
    """Return whether a probe is within `TOLERANCE_RATIO` of the median of all."""
    median = statistics.median(all_paces_ms)
    return abs(pace_ms / median - 1.0) <= TOLERANCE_RATIO
