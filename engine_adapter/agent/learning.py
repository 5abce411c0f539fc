"""Passes the evidence and the requirements to the engine's law, and refreshes it.

Runs in the exporter's thread: `learn` with each export, the refresh about once a second. The scheduler's thread counts,
reads K, and chooses K anew when the batch has changed (`law.law`). It receives single references: the prices of probes,
and the tables in which the law chooses K.

The requirements are those of the schedule's guidance for this engine while such a schedule is valid or held, otherwise
the engine's own flags. A change of requirements reaches the law with the next call, and the fleet's acceptance with the
next refresh.
"""

from collections.abc import Callable
from typing import Any

from specpilot.engine_adapter.evidence.meter import Evidence
from specpilot.engine_adapter.plan.speculation_control import Source, law_table
from specpilot.policy.names import DEFAULT_CLASS
from specpilot.policy.schedule import ClassGuidance, FleetAcceptance, Guidance, Objective

REFRESH_S = 1.0
"""Seconds between two fits. Prices change slowly. A smaller value follows a new load sooner and takes more processor
time."""


class Learning:
    """Passes evidence and requirements to the law of the engine of `scheduler`.

    With `adapts` the law also chooses K while no schedule is valid: at least `least_k`, with `probe_ratio` as the share
    of time for probes. `between` is called between two parts of a computation.
    """

    def __init__(
        self,
        scheduler: Any,
        *,
        adapts: bool,
        probe_ratio: float,
        least_k: int = 0,
        between: Callable[[], None] = lambda: None,
    ) -> None:
        self._scheduler = scheduler
        self._between = between
        self._adapts = adapts and scheduler.control.k_max > 0
        self._by_flags = Guidance(Objective.THROUGHPUT, {DEFAULT_CLASS: ClassGuidance(k_min=least_k)}, probe_ratio)
        self._guidance: Guidance | None = None
        self._fleet: FleetAcceptance | None = None
        self._refreshed_at = float("-inf")
        self._refreshed_with: tuple[int, FleetAcceptance | None] = -1, None  # steps and fleet of the latest refresh
        scheduler.law.follow(self._by_flags)

    def learn(self, evidence: Evidence, now: float) -> None:
        """Learn from the counts since the last call; `now` is monotonic, in seconds."""
        scheduler, law = self._scheduler, self._scheduler.law
        law.learn(scheduler.meter.take_steps(), evidence, self._between)
        if self._follow(now):
            self._replace_tables()  # at once: the table in force has the bounds of the former guidance
        if now - self._refreshed_at >= REFRESH_S:
            self._refreshed_at = now
            known = law.cost.steps, self._fleet
            if known != self._refreshed_with:
                self._refreshed_with = known
                law.refresh(self._between)
                scheduler.planner.prices = law.probe_prices
            self._replace_tables()

    def _follow(self, now: float) -> bool:
        """Pass the requirements in force to the law; return whether they changed."""
        guidance = self._scheduler.control.guidance(now)
        schedule = self._scheduler.control.schedule  # read last: with guidance there is one
        if guidance is not None and schedule.fleet is not None and schedule.fleet is not self._fleet:
            self._fleet = schedule.fleet
            self._scheduler.law.acceptance.begin_with(schedule.fleet)
        if guidance == self._guidance:
            return False
        self._guidance = guidance
        self._scheduler.law.follow(guidance or self._by_flags)
        return True

    def _replace_tables(self) -> None:
        control, law, guidance = self._scheduler.control, self._scheduler.law, self._guidance
        guided = None
        if guidance is not None and law.estimates is not None:
            guided = law_table(law, guidance.probe_ratio, Source.GUIDANCE)
        control.guided = guided  # set once, because the scheduler's thread may read it at any time
        control.adapting = law_table(law, self._by_flags.probe_ratio) if self._adapts else None
