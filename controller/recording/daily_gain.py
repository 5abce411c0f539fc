"""What adaptive K gained over the static K, day by day: from the sums that are kept of each day to a figure. Pure.

A day's figure is the mean over its windows, with a 95 % interval (Student's t). Where the static K or the policy
changed within a day, its windows are of both.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from specpilot.controller.estimation.t_interval import interval_of
from specpilot.policy.gain import DailyGain

LEAST_WINDOWS = 5
"""Windows of a day before an interval is told."""
_TAIL = 0.025
_DAYS_TOLD = 7


def gain_ratio_of(found: DailyGain) -> dict[str, float] | None:
    """Return the gain of a day as ratios minus 1, `low`, `mean` and `high`; `None` while its windows are too few."""
    if found.windows < LEAST_WINDOWS:
        return None
    mean = found.log_sum / found.windows
    bounds = interval_of(found.windows, mean, found.log_square_sum - found.windows * mean * mean, _TAIL)
    ratios = {"low": bounds.low, "mean": bounds.mean, "high": bounds.high}
    return {name: math.expm1(min(value, 50.0)) for name, value in ratios.items()}


def described(found: Sequence[DailyGain]) -> list[dict[str, Any]]:
    """Return days ready for JSON, in the order given."""
    return [{"day": item.day, "windows": item.windows, "gain_ratio": gain_ratio_of(item)} for item in found]


def lines(days: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each of the newest days, for a person."""
    return [f"  {day['day']}: {_told(day)}" for day in days[:_DAYS_TOLD]]


def _told(day: Mapping[str, Any]) -> str:
    gain = day["gain_ratio"]
    if gain is None:
        return f"{day['windows']} windows, too few for an interval"
    return f"{gain['mean']:+.1%}, between {gain['low']:+.1%} and {gain['high']:+.1%} (95 %, {day['windows']} windows)"
