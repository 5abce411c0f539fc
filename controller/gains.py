"""The leader's count of what adaptive K gains each day: kept in Redis, so that it outlives controllers, and shown.

A window that Redis does not take is lost: the day's figure has one window less.
"""

from specpilot.controller.metrics import ControllerMetrics
from specpilot.policy.gain import DailyGain, LogGain, day_of
from specpilot.policy.store import Store
from specpilot.policy.types import Lease

PoolKey = tuple[str, str]


class DailyGains:
    """Today's gain of every pool (model and pool), as Redis had it last."""

    def __init__(self, store: Store, metrics: ControllerMetrics) -> None:
        self._store = store
        self._metrics = metrics
        self._latest: dict[PoolKey, DailyGain] = {}

    def count(self, key: PoolKey, log_gain: LogGain | None, at: float, lease: Lease) -> None:
        """Count a window that was compared at `at` (Unix seconds), if one was, and show the day so far.

        Asks Redis once for a pool, and for each window. Raises as `Store.add_gain`.
        """
        today = day_of(at)
        if log_gain is not None:
            self._latest[key] = self._store.add_gain(*key, at, log_gain, lease)
        elif key not in self._latest:
            found = self._store.daily_gains(*key)
            self._latest[key] = found[0] if found else DailyGain(today)
        if self._latest[key].day == today:
            self._metrics.show_day(*key, self._latest[key])

    def begin(self) -> None:
        """Begin to lead: another controller has counted meanwhile."""
        self._latest.clear()

    def forget(self, key: PoolKey) -> None:
        """Drop a pool that is gone; what Redis has of it ends by itself."""
        self._latest.pop(key, None)
