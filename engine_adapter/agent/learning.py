"""Passes the evidence and the requirements to the engine's law, and refreshes it.

Runs in the exporter's thread: `learn` with each export, the refresh about once a second. The scheduler's thread counts,
reads K, and chooses K anew when the batch has changed (`law.law`). It receives single references: the prices of probes,
and the tables in which the law chooses K.

The requirements are those of the guidance in force, before the first schedule the engine's own flags. A change of
requirements, or a hold of the law's groups, reaches the law with the next call, and the fleet's acceptance with the
next refresh. An override alone changes no requirement: after it the law goes on with its last choice.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from specpilot.engine_adapter.evidence.meter import Evidence
from specpilot.engine_adapter.plan.speculation_control import law_table
from specpilot.policy.schedule import FleetAcceptance, Guidance

REFRESH_S = 1.0
"""Seconds between two fits. Prices change slowly. A smaller value follows a new load sooner and takes more processor
time."""


class Learning:
    """Passes evidence and requirements to the law of the engine of `scheduler`.

    `between` is called between two parts of a computation.
    """

    def __init__(self, scheduler: Any, between: Callable[[], None] = lambda: None) -> None:
        self._scheduler = scheduler
        self._between = between
        self._guidance: Guidance = scheduler.control.own_guidance
        self._fleet: FleetAcceptance | None = None
        self._refreshed_at = float("-inf")
        self._refreshed_with: tuple[int, FleetAcceptance | None] = -1, None  # steps and fleet of the latest refresh
        scheduler.law.follow(self._guidance)
        self._replace_table()

    def learn(self, evidence: Evidence, now: float) -> None:
        """Learn from the counts since the last call; `now` is monotonic, in seconds."""
        scheduler, law = self._scheduler, self._scheduler.law
        law.learn(scheduler.meter.take_steps(), evidence, self._between)
        if self._follow(now):
            self._replace_table()  # at once: the table in force has the bounds of the former guidance
        law.hold(is_held=scheduler.control.holds_law(now), between=self._between)
        if now - self._refreshed_at >= REFRESH_S:
            self._refreshed_at = now
            known = law.cost.steps, self._fleet
            if known != self._refreshed_with:
                self._refreshed_with = known
                law.refresh(self._between)
                scheduler.planner.prices = law.probe_prices
            self._replace_table()  # so that a repeated step is planned anew, by the new choice

    def _follow(self, now: float) -> bool:
        """Pass the requirements in force to the law; return whether they changed.

        While the law keeps its groups with their K, they change nothing: a policy that is written during a freeze
        counts from its end on.
        """
        guidance = self._scheduler.control.guidance(now)
        if guidance is None:
            return False
        fleet = self._scheduler.control.schedule.fleet  # read last: with guidance there is a schedule
        if fleet is not None and fleet is not self._fleet:
            self._fleet = fleet
            self._scheduler.law.acceptance.begin_with(fleet)
        guidance = replace(guidance, override=None)
        is_kept = self._scheduler.law.is_held and self._scheduler.control.holds_law(now)
        if is_kept or guidance == self._guidance:
            return False
        self._guidance = guidance
        self._scheduler.law.follow(guidance)
        return True

    def _replace_table(self) -> None:
        control, law = self._scheduler.control, self._scheduler.law
        control.by_law = law_table(law, self._guidance.probe_ratio) if control.k_max else None
