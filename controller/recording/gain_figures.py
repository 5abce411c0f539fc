"""The gain of adaptive K over the static K by day, from the stored sums of each day. Pure.

A day's figure is the mean over its windows, with a 95 % interval (Student's t). A day in which the static K or the
policy changed has windows of both.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from specpilot.controller.estimation.t_interval import interval_of
from specpilot.policy.gain import MEASURES, DailyGain, GainSums

LEAST_WINDOWS = 5
"""Fewest windows of a day for an interval."""
_TAIL = 0.025
_DAYS_SHOWN = 7
_LABELS = {"throughput": "throughput", "itl": "inter-token latency"}


def gain_ratio_of(day: DailyGain, measure: str) -> dict[str, float] | None:
    """Return the gain of a day as ratios minus 1, `low`, `mean` and `high`; `None` while its windows are too few."""
    sums: GainSums = getattr(day, measure)
    if sums.windows < LEAST_WINDOWS:
        return None
    mean = sums.log_sum / sums.windows
    return interval_of(sums.windows, mean, sums.log_square_sum - sums.windows * mean * mean, _TAIL).ratios()


def described(days: Sequence[DailyGain]) -> list[dict[str, Any]]:
    """Return days ready for JSON, in the order given."""
    return [
        {"day": item.day, "windows": item.throughput.windows}
        | {f"{measure}_gain_ratio": gain_ratio_of(item, measure) for measure in MEASURES}
        for item in days
    ]


def lines(days: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each of the newest days, for a person."""
    return [f"  {day['day']}: {_text(day)}" for day in days[:_DAYS_SHOWN]]


def _text(day: Mapping[str, Any]) -> str:
    windows, gains = day["windows"], "; ".join(f"{measure} {gain}" for measure, gain in gain_texts(day))
    return f"{gains} (95 %, {windows} windows)" if gains else f"{counted(windows)}, too few for an interval"


def counted(windows: int) -> str:
    """Return the number of windows in words."""
    return "1 window" if windows == 1 else f"{windows} windows"


def gain_texts(evidence: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return each measure whose gain is in `evidence`, with the gain, for a person."""
    gains = ((label, evidence.get(f"{measure}_gain_ratio")) for measure, label in _LABELS.items())
    return [
        (label, f"{gain['mean']:+.1%}, between {gain['low']:+.1%} and {gain['high']:+.1%}")
        for label, gain in gains
        if gain
    ]
