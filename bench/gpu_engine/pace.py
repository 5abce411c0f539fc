"""How fast this processor runs Python now: a fixed loop, timed.

The host's share of a step is Python. A virtual machine's processor may run a third slower for some seconds, and a cell
that is measured then looks slow for a reason that is not the engine's. The loop is measured before and after each cell.
"""

import statistics
import time
from collections.abc import Sequence

LOOP = 20_000
"""Turns of the loop: about 1 ms. Shorter is lost in interrupts, longer takes time from the cells."""

TIMES = 5
"""Loops in one probe; the median counts, so that one interrupt does not."""

TOLERANCE_RATIO = 0.1
"""How far the probe of a cell may lie from the median of all: cells of one machine repeat within 3 %, and its two paces
lay 32 % apart (one H200, 2026-11-26)."""


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
    """Whether a probe lies within `TOLERANCE_RATIO` of the median of all."""
    median = statistics.median(all_paces_ms)
    return abs(pace_ms / median - 1.0) <= TOLERANCE_RATIO
