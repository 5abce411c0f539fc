"""What adaptive K gained over the static K in one day, as the sums that its interval is told from."""

from dataclasses import dataclass
from datetime import UTC, datetime

GAIN_DAYS_KEPT = 30
"""How many days are kept of each pool, today's included."""


@dataclass(frozen=True, slots=True)
class DailyGain:
    """The windows of the hold-out that were compared in one day.

    `day` is a date in UTC, `2026-01-31`. `windows` counts them; `log_sum` and `log_square_sum` are the sums of the
    logarithm of what adaptive K gained in each, and of its square.
    """

    day: str
    windows: int = 0
    log_sum: float = 0.0
    log_square_sum: float = 0.0


def day_of(at: float) -> str:
    """Return the day in UTC of `at` (Unix seconds)."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")
