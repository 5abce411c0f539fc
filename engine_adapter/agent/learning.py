"""Feeds the engine's law: passes it the evidence, and refreshes its prices and acceptance once a second.

Runs in the exporter's thread. The scheduler's thread only counts and looks K up. It receives single references: the
prices of probes, and the table in which the law chooses K.
"""

from typing import Any

from specpilot.engine_adapter.evidence.meter import Evidence
from specpilot.engine_adapter.law.tuning import REFRESH_S
from specpilot.engine_adapter.plan.speculation_control import law_table


class Learning:
    """Feeds the law of the engine of `scheduler`; with `adapts` the law chooses K while no schedule is valid."""

    def __init__(self, scheduler: Any, *, adapts: bool, probe_ratio: float) -> None:
        self._scheduler = scheduler
        self._adapts = adapts and scheduler.control.k_max > 0
        self._probe_ratio = probe_ratio
        self._learned_at: float | None = None
        self._refreshed_at = float("-inf")

    def learn(self, evidence: Evidence, now: float) -> None:
        """Learn from the counts since the last call; `now` is monotonic, in seconds."""
        scheduler, law = self._scheduler, self._scheduler.law
        elapsed_s = 0.0 if self._learned_at is None else now - self._learned_at
        law.learn(scheduler.meter.take_steps(), evidence, elapsed_s)
        self._learned_at = now
        if now - self._refreshed_at < REFRESH_S:
            return
        self._refreshed_at = now
        law.refresh()
        scheduler.planner.prices = law.probe_prices
        if self._adapts:
            scheduler.control.adapting = law_table(law, self._probe_ratio)
