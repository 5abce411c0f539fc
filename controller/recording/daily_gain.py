"""What adaptive K gained over the static K, day by day: from the sums that are kept of each day to a figure. Pure.

A day's figure is the mean over its windows, with a 95 % interval (Student's t). Where the static K or the policy
changed within a day, its windows are of both.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from specpilot.controller.estimation.t_interval import interval_of
from specpilot.policy.gain import MEASURES, DailyGain, GainSums

LEAST_WINDOWS = 5
"""Windows of a day before an interval is told."""
_TAIL = 0.025
_DAYS_TOLD = 7
_LABELS = {"throughput": "throughput", "itl": "inter-token latency"}


def gain_ratio_of(day: DailyGain, measure: str) -> dict[str, float] | None:
    """Return the gain of a day as ratios minus 1, `low`, `mean` and `high`; `None` while its windows are too few."""
    found: GainSums = getattr(day, measure)
    if found.windows < LEAST_WINDOWS:
        return None
    mean = found.log_sum / found.windows
    return interval_of(found.windows, mean, found.log_square_sum - found.windows * mean * mean, _TAIL).ratios()


def described(found: Sequence[DailyGain]) -> list[dict[str, Any]]:
    """Return days ready for JSON, in the order given."""
    return [
        {"day": item.day, "windows": item.throughput.windows}
        | {f"{measure}_gain_ratio": gain_ratio_of(item, measure) for measure in MEASURES}
        for item in found
    ]


def lines(days: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each of the newest days, for a person."""
    return [f"  {day['day']}: {_told(day)}" for day in days[:_DAYS_TOLD]]


def _told(day: Mapping[str, Any]) -> str:
    windows, gains = day["windows"], "; ".join(f"{measure} {gain}" for measure, gain in gains_told(day))
    return f"{gains} (95 %, {windows} windows)" if gains else f"{windows} windows, too few for an interval"


def gains_told(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return each measure whose gain is in `found`, with the gain, for a person."""
    gains = ((label, found.get(f"{measure}_gain_ratio")) for measure, label in _LABELS.items())
    return [
        (label, f"{gain['mean']:+.1%}, between {gain['low']:+.1%} and {gain['high']:+.1%}")
        for label, gain in gains
        if gain
    ]
