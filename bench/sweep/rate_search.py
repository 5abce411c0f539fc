"""Searches the highest request rate at which an SLO holds. Pure: outcomes so far in, the next rate out.

The rate is doubled until the SLO breaks, or halved until it holds, and then bisected (geometrically) until the two
final rates are within `precision`. Rates have six significant digits, like the names of files, so that an earlier trial
is found again. Outcomes are random: if a lower rate broke and a higher one held, the lower break counts, which makes
the result conservative.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple


class Trial(NamedTuple):
    """One rate (conversations a second), and whether the SLO held at it."""

    rate: float
    holds: bool


class Bounds(NamedTuple):
    """The highest rate at which it held, the lowest at which it broke; `None` without such a trial."""

    holds_at: float | None
    breaks_at: float | None


def bounds(trials: Sequence[Trial]) -> Bounds:
    """Return the bounds that the trials give."""
    breaks_at = min((trial.rate for trial in trials if not trial.holds), default=None)
    held = [trial.rate for trial in trials if trial.holds and (breaks_at is None or trial.rate < breaks_at)]
    return Bounds(max(held, default=None), breaks_at)


def next_rate(trials: Sequence[Trial], start: float, precision: float, lowest: float, highest: float) -> float | None:
    """Return the next rate to try; `None` when the search is over. `precision` is a ratio: 0.1 is a tenth."""
    holds_at, breaks_at = bounds(trials)
    rate: float | None
    if holds_at is None and breaks_at is None:
        rate = min(max(start, lowest), highest)
    elif breaks_at is None:
        assert holds_at is not None
        rate = None if holds_at >= highest else min(2 * holds_at, highest)
    elif holds_at is None:
        rate = None if breaks_at <= lowest else max(breaks_at / 2, lowest)
    else:
        rate = None if breaks_at <= holds_at * (1 + precision) else math.sqrt(holds_at * breaks_at)
    if rate is None:
        return None
    rate = float(f"{rate:.6g}")
    return None if any(trial.rate == rate for trial in trials) else rate
