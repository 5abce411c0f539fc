"""What the law remembers of one pool between ticks."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from controller.catch_up import CatchUp
from controller.explore import Explorer
from controller.guard import Guard
from controller.load import Load
from controller.observation import NO_EVIDENCE, Evidence
from controller.pool_cost import PoolCost
from controller.step_cost import StepCost
from controller.tuning import Tuning
from policy.canary import Arm
from policy.types import Schedule

_FRESH_LOOKS = 2


@dataclass(frozen=True, slots=True)
class _Parked:
    """What an arm had when the other one's turn came."""

    guard: Guard
    advised: NDArray[np.int64] | None
    schedule: Schedule | None


@dataclass(slots=True)
class PoolMemory:
    """One pool: learned cost, guard, load, the newest look, and when which kind of look came last.

    `seen_at` is the latest scrape, `elapsed_s` the time since the one before, `busy_at` the latest one with drafts,
    `frozen_since` the first of a row of scrapes in which requests ran but no counter moved. `advised` is the schedule
    that was last advised and not published.

    While a canary runs, each arm has a guard and a schedule of its own, so that neither inherits what the other did;
    what was learned of cost and acceptance is common. `fresh_looks` counts the looks at the beginning of a turn whose
    evidence is, wholly or in part, the other arm's. `left_for_exploring` is the schedule to go on from after exploring.
    `looks` counts the looks, and `looks_compared` those that the guard has judged by: one may serve several ticks.
    """

    tuning: Tuning
    cost: PoolCost
    catch_up: CatchUp
    guard: Guard
    explorer: Explorer
    load: Load = field(default_factory=Load)
    evidence: Evidence = NO_EVIDENCE
    seen_at: float | None = None
    busy_at: float | None = None
    frozen_since: float | None = None
    advised: NDArray[np.int64] | None = None
    arm: Arm = Arm.PRESENT
    parked: dict[Arm, _Parked] = field(default_factory=dict)
    fresh_looks: int = 0
    left_for_exploring: Schedule | None = None
    elapsed_s: float = 0.0
    looks: int = 0
    looks_compared: int = 0

    @classmethod
    def new(cls, tuning: Tuning) -> "PoolMemory":
        """Return the memory of a pool that nothing is known of."""
        return cls(tuning, PoolCost(tuning), CatchUp(tuning), Guard(tuning), Explorer(tuning))

    def begin(self, turn: Arm | None, heir: Arm, in_force: Schedule | None) -> Schedule | None:
        """Begin a tick of `turn`, `None` without a canary; return the schedule that its arm goes on from.

        That is the arm's own of before; the one in force, where it has none. When a canary has ended the pool goes on
        as `heir` did.
        """
        if turn is None and self.arm is Arm.PRESENT and not self.parked:
            return in_force
        arm = turn or heir
        schedule = in_force if arm is self.arm else self._switch(arm, in_force)
        if turn is None:
            self.arm = Arm.PRESENT
            self.parked.clear()
        return schedule

    def _switch(self, arm: Arm, in_force: Schedule | None) -> Schedule | None:
        """Park the arm whose turn it was, and return the schedule of `arm`."""
        self.parked[self.arm] = _Parked(self.guard, self.advised, self.left_for_exploring or in_force)
        self.left_for_exploring = None
        own = self.parked.pop(arm, None) or _Parked(Guard(self.tuning), None, in_force)
        self.arm, self.guard, self.advised, self.fresh_looks = arm, own.guard, own.advised, _FRESH_LOOKS
        return own.schedule

    def take_over(self, at: float) -> None:
        """Begin to lead at `at`: what was decided in stand-by was never in force, so both arms get new guards."""
        self.guard, self.left_for_exploring = Guard(self.tuning, at), None
        self.parked = {arm: replace(own, guard=Guard(self.tuning, at)) for arm, own in self.parked.items()}

    def take(self, evidence: Evidence, elapsed_s: float, at: float) -> None:
        """Take in one look at the whole pool."""
        self.fresh_looks = max(0, self.fresh_looks - 1)
        self.seen_at, self.elapsed_s = at, elapsed_s
        self.evidence = evidence
        if evidence.drafts:
            self.busy_at = at
        is_frozen = any(evidence.running.values()) and not evidence.drafts
        self.frozen_since = (at if self.frozen_since is None else self.frozen_since) if is_frozen else None
        self.load.take(evidence, elapsed_s, self.tuning.mix_time_s)
        self.explorer.look(self.load.decodes)
        self.looks += 1
        self.cost.learn(evidence.cells, elapsed_s, catch_ups=evidence.catch_ups)
        fit = self.cost.fit()
        if fit is not None:
            self.catch_up.learn(evidence, fit)

    def step_cost(self) -> StepCost | None:
        """Return the cost of steps with what K = 0 leaves behind; `None` before the first step."""
        fit = self.cost.fit()
        return None if fit is None else replace(fit, row_s=self.catch_up.row_s)

    def left_s(self) -> float:
        """Return the seconds that the newest look's steps at K = 0 leave to be caught up."""
        cost = self.step_cost()
        return 0.0 if cost is None else self.evidence.left_s(cost.left_s)

    def is_stale(self, now: float) -> bool:
        """Whether the evidence is too old to act on: no scrape, or counters that stand still while requests run."""
        if self.seen_at is None or now - self.seen_at > self.tuning.stale_s:
            return True
        return self.frozen_since is not None and now - self.frozen_since >= self.tuning.stale_s

    def is_idle(self, now: float) -> bool:
        """Whether nothing has been drafted lately."""
        return self.busy_at is None or now - self.busy_at > self.tuning.idle_s

    def ages(self, now: float) -> dict[str, Any]:
        """How old the evidence is, in seconds."""
        return {
            "scrape_age_s": None if self.seen_at is None else now - self.seen_at,
            "traffic_age_s": None if self.busy_at is None else now - self.busy_at,
            "counters_stand_still_s": None if self.frozen_since is None else now - self.frozen_since,
        }
