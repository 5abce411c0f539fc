"""What the agent's thread does for the law of the engine: it takes evidence in, and has it choose anew once a second.

The scheduler's thread only counts and looks up. What is handed to it are single references: the prices of probes, and
the table that has the law choose.
"""

from typing import Any

from specpilot.engine_adapter.evidence.meter import Evidence
from specpilot.engine_adapter.law.tuning import REFRESH_S
from specpilot.engine_adapter.plan.speculation_control import law_table


class Learning:
    """Teaches the law of the engine that `scheduler` belongs to, which chooses K by itself if it `adapts`."""

    def __init__(self, scheduler: Any, *, adapts: bool, probe_ratio: float) -> None:
        self._scheduler = scheduler
        self._adapts = adapts and scheduler.control.k_max > 0
        self._probe_ratio = probe_ratio
        self._taken_at: float | None = None
        self._refreshed_at = float("-inf")

    def take(self, evidence: Evidence, now: float) -> None:
        """Take in what was counted since the last time; `now` is monotonic, in seconds."""
        scheduler, law = self._scheduler, self._scheduler.law
        elapsed_s = 0.0 if self._taken_at is None else now - self._taken_at
        law.learn(scheduler.meter.take_steps(), evidence, elapsed_s)
        self._taken_at = now
        if now - self._refreshed_at < REFRESH_S:
            return
        self._refreshed_at = now
        law.refresh()
        scheduler.planner.prices = law.probe_prices
        if self._adapts:
            scheduler.control.adapting = law_table(law, self._probe_ratio)
