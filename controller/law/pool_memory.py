"""The law's state of one pool between ticks."""

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any

from specpilot.controller.estimation.observation import NO_EVIDENCE, Evidence, Snapshot
from specpilot.controller.estimation.pool_cost import PoolCost
from specpilot.controller.law.estimate import Mix
from specpilot.controller.law.hold_out import HoldOut
from specpilot.controller.law.k_table import KTable, Ranges
from specpilot.controller.law.load import Load
from specpilot.controller.tuning import Tuning
from specpilot.policy.canary import Arm
from specpilot.policy.prices import PriceList
from specpilot.policy.types import Schedule


@dataclass(frozen=True, slots=True)
class _Parked:
    """The state of an arm at the begin of the other arm's window."""

    schedule: Schedule | None
    changed_at: float


@dataclass(frozen=True, slots=True)
class RunningTrial:
    """A depth that one engine tries since `since`, at about `decodes` running decodes."""

    depth: int
    decodes: float
    engine_id: str
    since: float


@dataclass(slots=True)
class PoolMemory:
    """One pool: the estimated cost, the load, the control group, and the newest snapshot.

    `seen_at` is the time of the latest scrape, `elapsed_s` the time since the one before, `busy_at` the latest one with
    decodes, `stalled_since` the first of a series of scrapes in which requests ran but no counter moved. `running` has
    the running decodes of each engine. Where engines choose K (`is_by_engine`), `engines` has the newest snapshot of
    each and `mixes` what it runs.
    `chosen` is the law's last choice: in force, advised, or held by a window of the control group. `tried_at` is the
    time of the last trial of a depth at an octave of running decodes. `standing` is the baseline schedule with its
    probe ratio: the one that a window of the control group replaces, or that a freeze of the current K holds.

    While a canary runs, each arm continues from its own schedule; both share the estimates of cost and acceptance.
    """

    tuning: Tuning
    cost: PoolCost
    hold_out: HoldOut
    load: Load = field(default_factory=Load)
    evidence: Evidence = NO_EVIDENCE
    running: Mapping[str, float] = field(default_factory=dict)
    engines: dict[str, Snapshot] = field(default_factory=dict)
    mixes: dict[str, Mix] = field(default_factory=dict)
    is_by_engine: bool = False
    seen_at: float | None = None
    elapsed_s: float = 0.0
    busy_at: float | None = None
    stalled_since: float | None = None
    chosen: KTable | None = None
    standing: tuple[Ranges, float] | None = None
    changed_at: float = -math.inf
    trial: RunningTrial | None = None
    tried_at: dict[tuple[int, int], float] = field(default_factory=dict)
    arm: Arm = Arm.PRESENT
    parked: dict[Arm, _Parked] = field(default_factory=dict)

    @classmethod
    def new(cls, tuning: Tuning) -> "PoolMemory":
        """Return the memory of an unknown pool."""
        return cls(tuning, PoolCost(tuning), HoldOut(tuning))

    def begin(self, window: Arm | None, remaining_arm: Arm, in_force: Schedule | None) -> Schedule | None:
        """Begin a tick in a window of this arm (`None` without a canary); return the schedule that it goes on from.

        It is the arm's own last schedule, else the one in force. When a canary has ended, the pool goes on with
        `remaining_arm`.
        """
        if window is None and self.arm is Arm.PRESENT and not self.parked:
            return in_force
        arm = window or remaining_arm
        schedule = in_force if arm is self.arm else self._switch(arm, in_force)
        if window is None:
            self.arm = Arm.PRESENT
            self.parked.clear()
        return schedule

    def _switch(self, arm: Arm, in_force: Schedule | None) -> Schedule | None:
        """Park the arm of the last window, and return the schedule of `arm`."""
        self.parked[self.arm] = _Parked(in_force, self.changed_at)
        parked = self.parked.pop(arm, None) or _Parked(in_force, -math.inf)
        self.arm, self.changed_at, self.chosen, self.trial = arm, parked.changed_at, None, None
        self.standing = None
        return parked.schedule

    def take_over(self, at: float) -> None:
        """Begin to lead at `at`: drop the decisions of stand-by; the dwell time counts from now."""
        self.changed_at, self.chosen, self.trial, self.standing = at, None, None, None

    def take_engine(
        self, engine_id: str, evidence: Evidence, elapsed_s: float, at: float, prices: PriceList | None
    ) -> None:
        """Add one snapshot of an engine that chooses K: for the control group, and for the estimate of its choice."""
        self.engines[engine_id] = Snapshot(at, elapsed_s, evidence, self._corrected_s(evidence))
        self.mixes.setdefault(engine_id, Mix()).take(evidence, elapsed_s, prices)

    def forget_all_but(self, engines: Container[str]) -> None:
        """Drop the snapshots of engines that are gone."""
        self.engines = {name: found for name, found in self.engines.items() if name in engines}
        self.mixes = {name: found for name, found in self.mixes.items() if name in engines}

    def take(self, evidence: Evidence, running: Mapping[str, float], elapsed_s: float, at: float) -> None:
        """Add one snapshot of the whole pool; `running` are its decodes by engine."""
        # If each engine is scraped at its own time, several snapshots share the time of one.
        passed_s = elapsed_s if self.seen_at is None else max(0.0, min(elapsed_s, at - self.seen_at))
        of_same_engines = running.keys() == self.running.keys()
        self.seen_at, self.elapsed_s = at, elapsed_s
        self.evidence, self.running = evidence, running
        if evidence.drafts:
            self.busy_at = at
        is_stalled = any(evidence.running.values()) and not evidence.drafts
        self.stalled_since = (at if self.stalled_since is None else self.stalled_since) if is_stalled else None
        self.load.take(evidence, passed_s, self.tuning, of_same_engines=of_same_engines)
        self.cost.learn(evidence, passed_s)

    def snapshot(self) -> Snapshot | None:
        """Return the newest snapshot; `None` before the first."""
        if self.seen_at is None:
            return None
        return Snapshot(self.seen_at, self.elapsed_s, self.evidence, self._corrected_s(self.evidence))

    def _corrected_s(self, evidence: Evidence) -> float:
        cost, found = self.cost.fit(), sum(cell.seconds for cell in evidence.cells.values())
        if cost is not None:
            found -= sum(cell.steps * cost.prefill_s(cell.prefill / cell.steps) for cell in evidence.cells.values())
            found += cost.left_s * evidence.drafted_ratio * evidence.undrafted
        return found

    def is_stale(self, now: float) -> bool:
        """Return whether the evidence is too old: no scrape, or counters that stand still while requests run."""
        if self.seen_at is None or now - self.seen_at > self.tuning.stale_s:
            return True
        return self.stalled_since is not None and now - self.stalled_since >= self.tuning.stale_s

    @property
    def is_idle(self) -> bool:
        """Return whether the last snapshots had no decode. An old scrape does not mean that the pool is idle."""
        if self.busy_at is None or self.seen_at is None or not self.load.mix:
            return True
        return self.seen_at - self.busy_at > self.tuning.idle_s

    def ages(self, now: float) -> dict[str, Any]:
        """Return the age of the evidence in seconds."""
        return {
            "scrape_age_s": None if self.seen_at is None else now - self.seen_at,
            "traffic_age_s": None if self.busy_at is None else now - self.busy_at,
            "counters_stand_still_s": None if self.stalled_since is None else now - self.stalled_since,
        }
