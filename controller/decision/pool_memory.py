"""The controller's state of one pool between ticks."""

from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any

from specpilot.controller.decision.control_group import ControlGroup
from specpilot.controller.decision.latency_goals import LatencyGoals
from specpilot.controller.estimation.observation import Snapshot
from specpilot.controller.estimation.switchback import Switchback

STALE_S = 5.0
"""Age in seconds above which the newest evidence does not show the present load."""

IDLE_S = 2.0
"""Seconds without a decode, up to the newest snapshot, after which a pool counts as idle. At least two intervals
between scrapes: if Prometheus scrapes engines at different times, one snapshot may hold only an idle engine's
sample."""


@dataclass(slots=True)
class PoolMemory:
    """The state of one pool, scraped each `scrape_s` seconds: experiments and newest snapshots.

    `newest`: the latest snapshot of the pool. `busy_at`: the time of the latest snapshot with decodes. `stalled_since`:
    the time of the first of consecutive snapshots in which requests ran and no decode was counted; `None` if the newest
    is no such snapshot. `engines`: the newest snapshot of each engine. `goals`: the requests by latency goal.
    """

    scrape_s: float = 0.5
    control_group: ControlGroup = field(init=False)
    canary: Switchback = field(default_factory=Switchback)
    newest: Snapshot | None = None
    engines: dict[str, Snapshot] = field(default_factory=dict)
    goals: LatencyGoals = field(default_factory=LatencyGoals)
    busy_at: float | None = None
    stalled_since: float | None = None

    def __post_init__(self) -> None:
        self.control_group = ControlGroup(self.scrape_s)

    def breaks_slo(self, now: float) -> bool:
        """Return whether an engine with fresh evidence predicts that the static K would break an SLO."""
        return any(item.evidence.static_breaks_slo and now - item.at <= STALE_S for item in self.engines.values())

    def keep_engines(self, engines: Container[str]) -> None:
        """Drop the snapshots of engines that are gone."""
        self.engines = {name: snapshot for name, snapshot in self.engines.items() if name in engines}

    def add_snapshot(self, snapshot: Snapshot) -> None:
        """Add one snapshot of the whole pool."""
        self.newest, (at, _, evidence) = snapshot, snapshot
        if evidence.drafts:
            self.busy_at = at
        is_stalled = any(evidence.running.values()) and not evidence.drafts
        self.stalled_since = (at if self.stalled_since is None else self.stalled_since) if is_stalled else None

    @property
    def seen_at(self) -> float | None:
        """The time of the latest scrape; `None` before the first."""
        return None if self.newest is None else self.newest.at

    def is_stale(self, now: float) -> bool:
        """Return whether the evidence is too old: no scrape, or no decode is counted while requests run."""
        if self.seen_at is None or now - self.seen_at > STALE_S:
            return True
        return self.stalled_since is not None and now - self.stalled_since >= STALE_S

    @property
    def is_idle(self) -> bool:
        """Return whether the last snapshots had no decode. An old scrape does not mean that the pool is idle."""
        if self.busy_at is None or self.seen_at is None:
            return True
        return self.seen_at - self.busy_at > max(IDLE_S, 2 * self.scrape_s)

    def ages(self, now: float) -> dict[str, Any]:
        """Return the age of the evidence in seconds."""
        return {
            "scrape_age_s": None if self.seen_at is None else now - self.seen_at,
            "traffic_age_s": None if self.busy_at is None else now - self.busy_at,
            "counters_stand_still_s": None if self.stalled_since is None else now - self.stalled_since,
        }
