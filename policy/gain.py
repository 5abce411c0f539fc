"""The gain of adaptive K over the static K: in one window of the control group, and in one day.

There are two measures: tokens per busy second (`throughput`) and inter-token latency (`itl`, positive if it fell).
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

GAIN_DAYS_KEPT = 30
"""Days that are kept of each pool, today included."""


class LogGain(NamedTuple):
    """The gains of one window, as logarithms of ratios."""

    throughput: float
    itl: float

    def minus(self, other: "LogGain") -> "LogGain":
        """Return the logarithms of the ratios to `other`."""
        return LogGain(*(one - two for one, two in zip(self, other, strict=True)))

    def times(self, factor: float) -> "LogGain":
        """Return the logarithms times `factor`; with -1 those of the inverse ratios."""
        return LogGain(*(factor * one for one in self))


MEASURES = LogGain._fields


@dataclass(frozen=True, slots=True)
class GainSums:
    """The number of compared windows, and the sums of their log gains and of the squares of these."""

    windows: int = 0
    log_sum: float = 0.0
    log_square_sum: float = 0.0

    def plus(self, log_gain: float) -> "GainSums":
        """Return the sums with one more window."""
        return GainSums(self.windows + 1, self.log_sum + log_gain, self.log_square_sum + log_gain**2)


@dataclass(frozen=True, slots=True)
class DailyGain:
    """The compared windows of the control group in one day, by measure. `day` is a date in UTC, `2026-01-31`."""

    day: str
    throughput: GainSums = GainSums()
    itl: GainSums = GainSums()

    def plus(self, gain: LogGain) -> "DailyGain":
        """Return the day with one more window."""
        return DailyGain(self.day, self.throughput.plus(gain.throughput), self.itl.plus(gain.itl))


def day_of(at: float) -> str:
    """Return the day in UTC of `at` (Unix seconds)."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")
