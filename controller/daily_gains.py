"""The leader's daily gain of adaptive K over the static K, summed in Redis, so that it outlives controllers.

A window that Redis does not store is lost: the day's figure has one window less.
"""

from collections.abc import Sequence

from specpilot.controller.metrics import ControllerMetrics
from specpilot.policy.gain import DailyGain, LogGain, day_of
from specpilot.policy.names import PoolKey
from specpilot.policy.records import Lease
from specpilot.policy.store import Store


class DailyGains:
    """Today's gain of every pool (model and pool), as last read from Redis."""

    def __init__(self, store: Store, metrics: ControllerMetrics) -> None:
        self._store = store
        self._metrics = metrics
        self._latest: dict[PoolKey, DailyGain] = {}

    def count(self, key: PoolKey, log_gains: Sequence[LogGain], at: float, lease: Lease) -> None:
        """Add the gains of windows that were compared at `at` (Unix seconds), and show the day so far.

        Calls Redis for the first tick of a pool and for each window. Raises as `Store.add_gain`.
        """
        today = day_of(at)
        for log_gain in log_gains:
            self._latest[key] = self._store.add_gain(*key, at, log_gain, lease)
        if key not in self._latest:
            days = self._store.daily_gains(*key)
            self._latest[key] = days[0] if days else DailyGain(today)
        if self._latest[key].day == today:
            self._metrics.show_day(*key, self._latest[key])

    def begin_to_lead(self) -> None:
        """Begin to lead: read the sums again, because another controller has added to them."""
        self._latest.clear()

    def forget(self, key: PoolKey) -> None:
        """Drop a pool that is gone; its keys in Redis expire."""
        self._latest.pop(key, None)
