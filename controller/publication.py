"""Writes the leader's decisions: the schedule for engines, the record for people, and the gain of the day.

A schedule is published when it changes, and renewed every `RENEW_S` with the present acceptance. Every decision is
recorded; while nothing runs, only one per `QUIET_RECORD_S`. Redis keeps the latest records. It keeps records that
changed the schedule, and one per `LASTING_S`, for longer.

The gain of each compared window is added to its day's sums in Redis, which outlive controllers. A window that Redis
does not store is lost: the day's figure has one window less.

A fall back to the static K is one audit entry, written by the leader whose control group caused it. The windows in
which the adaptive K runs meanwhile, and their ends, write no entry.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from specpilot.controller.decision.context import PoolContext, TickResult
from specpilot.controller.decision.reason import Reason
from specpilot.controller.events import fell_back
from specpilot.controller.metrics import ControllerMetrics
from specpilot.controller.pools import next_version, schedule_of
from specpilot.policy.audit import AuditEntry
from specpilot.policy.clock import Clock
from specpilot.policy.gain import DailyGain, LogGain, day_of
from specpilot.policy.names import PoolKey
from specpilot.policy.records import Decision, Lease
from specpilot.policy.schedule import Schedule
from specpilot.policy.store import Store

RENEW_S = 5.0
"""Seconds between two renewals of an unchanged schedule. Every engine of the pool reads each renewal."""
QUIET_RECORD_S = 10.0
LASTING_S = 60.0
_QUIET = (Reason.IDLE, Reason.STALE, Reason.NO_DRAFTER)
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Written:
    """The steady times of a pool's last writes, and the reason of the last decision.

    `is_fall_back_audited`: the audit has an entry of the present fall back. `day` is today's gain, as last read.
    """

    published_at: float = float("-inf")
    recorded_at: float = float("-inf")
    reason: Reason | None = None
    lasting_at: float = float("-inf")
    is_fall_back_audited: bool = False
    day: DailyGain | None = None


@dataclass(slots=True)
class Publisher:
    """Writes the leader's decisions, `interval_s` apart. Errors of the store pass through."""

    store: Store
    metrics: ControllerMetrics
    audit: Callable[[AuditEntry], None]
    clock: Clock
    interval_s: float
    _written: dict[PoolKey, _Written] = field(default_factory=dict)

    def begin_to_lead(self) -> None:
        """Drop the record of audited fall backs and the gains, because another controller has led meanwhile."""
        for written in self._written.values():
            written.is_fall_back_audited, written.day = False, None

    def resume(self, key: PoolKey) -> None:
        """Take over a pool that fell back under the last leader, which wrote the audit entry."""
        self._written.setdefault(key, _Written()).is_fall_back_audited = True

    def write(self, context: PoolContext, result: TickResult, in_force: dict[PoolKey, Schedule], lease: Lease) -> bool:
        """Publish a schedule that is new or due, put it into `in_force`, and record the decision; blocks.

        Returns whether the decision was recorded: while nothing runs, a repetition is not.
        """
        key = (context.model, context.pool)
        old = in_force.get(key)
        now = self.clock.monotonic()
        written = self._written.setdefault(key, _Written())
        if result.has_lost is False:
            written.is_fall_back_audited = False
        is_new = is_due = False
        schedule = None
        if result.guidance is not None:
            schedule = schedule_of(context, result, result.guidance, next_version(context), self.clock.now())
            is_due = now - written.published_at >= RENEW_S - self.interval_s / 2
            is_new = old is None or _applied(old) != _applied(schedule)
            if is_due or is_new:
                self.store.publish_schedule(schedule, lease)
                if is_new and schedule.is_fallen_back and not written.is_fall_back_audited:
                    self.audit(fell_back(old, schedule, self.clock.now()))
                    written.is_fall_back_audited = True
                written.published_at = now
                self.metrics.show_version(*key, schedule.version)
                old = in_force[key] = schedule
        if is_new:
            _log.info("%s %s: version %d, %s", *key, old.version if old else 0, result.reason.value)
        elif result.reason in _QUIET and result.reason is written.reason and now - written.recorded_at < QUIET_RECORD_S:
            return False
        written.reason, written.recorded_at = result.reason, now
        is_lasting = is_new or now - written.lasting_at >= LASTING_S
        if is_lasting:
            written.lasting_at = now
        self.store.append_decision(
            Decision(
                at=self.clock.now(),
                model=context.model,
                pool=context.pool,
                mode=context.policy_in_force.mode,
                reason=result.reason.value,
                published=is_due or is_new,
                version=old.version if old else 0,
                schedule=schedule and replace(schedule, fleet=None, drawn=(), drawn_until=None),
                evidence=result.evidence,
                k=result.k,
            ),
            is_lasting=is_lasting,
        )
        return True

    def add_gains(self, key: PoolKey, log_gains: Sequence[LogGain], lease: Lease) -> None:
        """Add the gains of windows that were compared now, and show the day so far; blocks.

        Calls Redis for the first tick of a pool and for each window.
        """
        at, written = self.clock.now(), self._written.setdefault(key, _Written())
        for log_gain in log_gains:
            written.day = self.store.add_gain(*key, at, log_gain, lease)
        if written.day is None:
            days = self.store.daily_gains(*key)
            written.day = days[0] if days else DailyGain(day_of(at))
        if written.day.day == day_of(at):
            self.metrics.show_day(*key, written.day)

    def forget(self, key: PoolKey) -> None:
        """Drop the state of a pool that is gone."""
        self._written.pop(key, None)


def _applied(schedule: Schedule) -> tuple[object, ...]:
    """Return the parts of a schedule that change an engine's K at once; a new prior waits for the next renewal."""
    return schedule.guidance, schedule.drawn, schedule.drawn_until, schedule.drawn_guidance
