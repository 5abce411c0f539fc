"""What the law remembers of one pool between ticks."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specpilot.controller.estimation.observation import NO_EVIDENCE, Evidence, Look
from specpilot.controller.estimation.pool_cost import PoolCost
from specpilot.controller.law.hold_out import HoldOut
from specpilot.controller.law.k_table import KTable, Ranges
from specpilot.controller.law.load import Load
from specpilot.controller.tuning import Tuning
from specpilot.policy.canary import Arm
from specpilot.policy.types import Schedule


@dataclass(frozen=True, slots=True)
class _Parked:
    """What an arm had when the other one's turn came."""

    schedule: Schedule | None
    changed_at: float


@dataclass(frozen=True, slots=True)
class RunningTrial:
    """A depth that one engine tries since `since`, at about so many running `decodes`."""

    depth: int
    decodes: float
    engine_id: str
    since: float


@dataclass(slots=True)
class PoolMemory:
    """One pool: learned cost, load, hold-out, the newest look, and when which kind of look came last.

    `seen_at` is the latest scrape, `elapsed_s` the time since the one before, `busy_at` the latest one with drafts,
    `stalled_since` the first of a row of scrapes in which requests ran but no counter moved. `running` are the decodes
    that run in each engine. `chosen` is what the law chose last: in force, advised, or held back by the hold-out.
    `tried_at` tells when a depth was last tried at an octave of running decodes. `standing` are rows, and their share
    of probes: those that a window of the hold-out keeps out of force, and while the current K is frozen those to hold.

    While a canary runs, each arm goes on from its own schedule; what was learned of cost and acceptance is common.
    """

    tuning: Tuning
    cost: PoolCost
    hold_out: HoldOut
    load: Load = field(default_factory=Load)
    evidence: Evidence = NO_EVIDENCE
    running: Mapping[str, float] = field(default_factory=dict)
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
        """Return the memory of a pool that nothing is known of."""
        return cls(tuning, PoolCost(tuning), HoldOut(tuning))

    def begin(self, turn: Arm | None, remaining_arm: Arm, in_force: Schedule | None) -> Schedule | None:
        """Begin a tick of `turn`, `None` without a canary; return the schedule that its arm goes on from.

        That is the arm's own of before; the one in force, where it has none. When a canary has ended the pool goes on
        as `remaining_arm` did.
        """
        if turn is None and self.arm is Arm.PRESENT and not self.parked:
            return in_force
        arm = turn or remaining_arm
        schedule = in_force if arm is self.arm else self._switch(arm, in_force)
        if turn is None:
            self.arm = Arm.PRESENT
            self.parked.clear()
        return schedule

    def _switch(self, arm: Arm, in_force: Schedule | None) -> Schedule | None:
        """Park the arm whose turn it was, and return the schedule of `arm`."""
        self.parked[self.arm] = _Parked(in_force, self.changed_at)
        own = self.parked.pop(arm, None) or _Parked(in_force, -math.inf)
        self.arm, self.changed_at, self.chosen, self.trial = arm, own.changed_at, None, None
        self.standing = None
        return own.schedule

    def take_over(self, at: float) -> None:
        """Begin to lead at `at`: what was decided in stand-by was never in force, and what is in force dwells."""
        self.changed_at, self.chosen, self.trial, self.standing = at, None, None, None

    def take(self, evidence: Evidence, running: Mapping[str, float], elapsed_s: float, at: float) -> None:
        """Take in one look at the whole pool; `running` are its decodes by engine."""
        # Where the engines of a pool are scraped at times of their own, several looks fall into the time of one.
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

    def look(self) -> Look | None:
        """Return the newest look; `None` before the first."""
        if self.seen_at is None:
            return None
        cost, evidence = self.cost.fit(), self.evidence
        busy_s = sum(cell.seconds for cell in evidence.cells.values())
        if cost is not None:
            busy_s -= sum(cell.steps * cost.prefill_s(cell.prefill / cell.steps) for cell in evidence.cells.values())
            busy_s += cost.left_s * evidence.drafted_ratio * evidence.undrafted
        return Look(self.seen_at, self.elapsed_s, evidence, busy_s)

    def is_stale(self, now: float) -> bool:
        """Whether the evidence is too old to act on: no scrape, or counters that stand still while requests run."""
        if self.seen_at is None or now - self.seen_at > self.tuning.stale_s:
            return True
        return self.stalled_since is not None and now - self.stalled_since >= self.tuning.stale_s

    @property
    def is_idle(self) -> bool:
        """Whether nothing ran in the last looks: a look that is only old is no sign of that (`is_stale`)."""
        if self.busy_at is None or self.seen_at is None or not self.load.mix:
            return True
        return self.seen_at - self.busy_at > self.tuning.idle_s

    def ages(self, now: float) -> dict[str, Any]:
        """How old the evidence is, in seconds."""
        return {
            "scrape_age_s": None if self.seen_at is None else now - self.seen_at,
            "traffic_age_s": None if self.busy_at is None else now - self.busy_at,
            "counters_stand_still_s": None if self.stalled_since is None else now - self.stalled_since,
        }
