"""The outer loop: once every interval scrape, update estimates, decide, publish and record.

Order of one tick: read the shared state; scrape; take the evidence in (leader and stand-by alike, so that a take-over
starts from the same estimates and the same schedule); decide; the leader publishes what changed, and renews what did
not before it lapses; the leader records the decision (while nothing runs, one in `QUIET_RECORD_S`). The latest are
kept, and for longer those that changed the schedule and one in `LASTING_S`. The lease is renewed apart from all this
(`lease`).

A policy that cannot be read affects its own model only: its pools are held. Pools that had no engine for `FORGET_S` are
forgotten, with their schedules.

When Redis does not answer the loop goes on with the state it read last: it takes evidence in and decides, but publishes
nothing, and a canary's turns stand still. It logs that once, and once when Redis is back. A Redis that is full answers:
what it refuses to take is logged once, too. No failure of an engine or of Redis ends the loop.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from specpilot.controller.estimation.observation import Observation
from specpilot.controller.events import canary_ended, freeze_ended, stepped_back
from specpilot.controller.experiments.runner import Runner
from specpilot.controller.forecast import LawView
from specpilot.controller.freezing import as_frozen, ended_within, held
from specpilot.controller.gains import DailyGains
from specpilot.controller.law.context import PoolContext, TickResult
from specpilot.controller.law.control_law import ControlLaw
from specpilot.controller.law.k_table import Ranges
from specpilot.controller.law.reason import Reason
from specpilot.controller.lease import Leadership
from specpilot.controller.metrics import ControllerMetrics
from specpilot.controller.pools import Sightings, in_turn, next_version, of_steerable, pool_contexts
from specpilot.controller.recording.record import Recorded
from specpilot.policy.audit import AuditEntry
from specpilot.policy.bands import classes_in
from specpilot.policy.canary import Experiment
from specpilot.policy.clock import Clock
from specpilot.policy.errors import (
    FencedError,
    InvalidDocumentError,
    StoreFullError,
    StoreUnavailableError,
    VersionConflictError,
)
from specpilot.policy.freeze import Freeze, freeze_of
from specpilot.policy.store import Store, StoreMemory
from specpilot.policy.types import Decision, EngineRecord, Lease, Mode, Policy, Schedule

VALID_FOR_S = 60.0
"""Long enough to outlast a restart of Redis or of the controller, so that K stays through it."""
RENEW_S = 5.0
"""Between two renewals of a schedule that stays as it is. Every engine of the pool reads each one."""
QUIET_RECORD_S = 10.0
LASTING_S = 60.0
MEMORY_S = 5.0
"""Between two looks at the memory of Redis, which fills over hours."""
HANG_S = 10.0
"""A loop that has not ended a tick for so long hangs: the controller is not ready, and its lease is left to run out."""
_QUIET = (Reason.IDLE, Reason.STALE, Reason.NO_DRAFTER)
_log = logging.getLogger(__name__)


class Source(Protocol):
    """Where observations come from. `scraped_at` is the time of each engine's newest one."""

    scraped_at: dict[str, float]

    async def scrape(self, engines: Sequence[EngineRecord]) -> list[Observation]:
        """Return an observation of every engine that can be told of; must not raise for one that cannot."""


@dataclass(slots=True)
class _Shared:
    """The shared state as it was read last."""

    engines: tuple[EngineRecord, ...] = ()
    policies: dict[str, Policy] = field(default_factory=dict)
    schedules: dict[tuple[str, str], Schedule] = field(default_factory=dict)
    policy_versions: dict[str, int] = field(default_factory=dict)
    experiments: dict[str, Experiment] = field(default_factory=dict)
    freezes: Mapping[str, Freeze] = field(default_factory=dict)
    unreadable: frozenset[str] = frozenset()  # models whose policy cannot be read
    at: float = math.inf  # Unix seconds


def _applied(schedule: Schedule) -> tuple[object, ...]:
    """Return what of a schedule an engine goes by."""
    return schedule.classes, schedule.trial, schedule.like_default


class ControlLoop:
    """One controller's loop over all models and pools."""

    def __init__(  # noqa: PLR0913 - collaborators, each by name
        self,
        *,
        store: Store,
        leadership: Leadership,
        collector: Source,
        law: ControlLaw,
        metrics: ControllerMetrics,
        clock: Clock,
        interval_s: float = 0.5,
        look_s: float | None = None,
        default_mode: Mode = Mode.ACT,
        without: Sequence[str] = (),
        recorder: Callable[[Recorded], None] | None = None,
        audit: Callable[[AuditEntry], None] | None = None,
    ) -> None:
        self._store = store
        self._leadership = leadership
        self._collector = collector
        self._law = law
        self._metrics = metrics
        self._clock = clock
        self._interval_s = interval_s
        self._look_s = interval_s if look_s is None else look_s
        self._default_mode = default_mode
        self._without = tuple(without)
        self._recorder = recorder
        self._audit = audit or (lambda _: None)
        self._shared = _Shared()
        self._runner = Runner()
        self._turns_at = 0.0
        self._fence: int | None = None
        self._store_up = True
        self._is_full = False
        self._memory: StoreMemory | None = None
        self._memory_at = float("-inf")
        self._published_at: dict[tuple[str, str], float] = {}
        self._recorded: dict[tuple[str, str], tuple[Reason, float]] = {}
        self._lasting_at: dict[tuple[str, str], float] = {}
        self._gains = DailyGains(store, metrics)
        self._wake = asyncio.Event()
        self._sightings = Sightings()
        self._unreadable: frozenset[str] = frozenset()
        self._ticked_at = clock.monotonic()
        self.ticks = 0

    @property
    def is_hanging(self) -> bool:
        """Whether no tick has ended for far longer than one should take."""
        return self._clock.monotonic() - self._ticked_at > HANG_S + self._interval_s

    def wake(self) -> None:
        """Begin the next tick now: an operator changed something."""
        self._wake.set()

    def view(self) -> LawView:
        """Return the law and what it is told of every pool, for a forecast. On the loop's own thread only."""
        shared = self._shared
        pools = pool_contexts(shared.engines, shared.policies, shared.schedules.values(), self._default_mode)
        return LawView(self._law, pools, self._clock.monotonic(), self._clock.now())

    async def run(self) -> None:
        """Tick until cancelled; gives the lease up at the end."""
        self._leadership.keep(lambda: not self.is_hanging)
        try:
            while True:
                began = self._clock.monotonic()
                try:
                    await self.tick()
                except Exception:  # noqa: BLE001 - no unforeseen fault may end the loop
                    _log.exception("this tick failed; the next one starts anew")
                    self._metrics.count_error()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(
                        self._wake.wait(), max(0.0, began + self._interval_s - self._clock.monotonic())
                    )
                self._wake.clear()
        finally:
            try:
                await asyncio.shield(asyncio.to_thread(self._leadership.release))
            except StoreUnavailableError as error:
                _log.info("the lease was left to run out: %s", error)

    async def tick(self) -> None:
        """Do one round."""
        began = self._clock.monotonic()
        is_read = await self._ask(self._read)
        lease, shared = self._leadership.lease if is_read else None, self._shared
        observations = await self._collector.scrape(shared.engines)
        now, at = self._clock.monotonic(), self._clock.now()
        self._turns_at = at if self._store_up else self._turns_at
        resumed: list[tuple[str, str, str]] = []
        if lease is not None:
            if lease.fence != self._fence:
                self._fence = lease.fence
                self._is_full = False
                self._law.take_over(now)
                self._gains.begin()
                await self._ask(partial(self._read_stepped_back, resumed))
            for changed in self._runner.judge(shared.experiments.values(), shared.policy_versions, at):
                await self._ask(partial(self._put_canary, changed, lease, at))
        if self._recorder:
            self._recorder(
                Recorded(at, now, shared.engines, dict(shared.policies), tuple(shared.schedules.values()),
                         tuple(observations), dict(shared.experiments), dict(shared.freezes), shared.unreadable,
                         self._turns_at, lease.fence if lease else None, self._default_mode, self._without,
                         self._look_s, tuple(resumed))
            )  # fmt: skip
        for found in resumed:
            self._law.resume(*found)
        self._law.observe(of_steerable(observations, shared.engines))
        pools = pool_contexts(shared.engines, shared.policies, shared.schedules.values(), self._default_mode)
        await self._forget([(pool.model, pool.pool) for pool in pools], lease, now)
        for pool in pools:
            if pool.model in shared.unreadable:
                continue  # what is in force stays, until the policy can be read or the schedule lapses
            try:
                await self._steer(pool, lease, at, now)
            except Exception:  # noqa: BLE001 - a fault in one pool must not stop the others
                _log.exception("%s %s: not steered in this tick; the next one starts anew", pool.model, pool.pool)
                self._metrics.count_error()
        if lease is not None:
            self._runner.end_tick(shared.experiments.values(), at)
        self.ticks += 1
        self._ticked_at = self._clock.monotonic()
        ages = [(name, self._clock.monotonic() - at) for name, at in self._collector.scraped_at.items()]
        self._metrics.show_tick(
            self._clock.monotonic() - began,
            leads=self._leadership.lease is not None,
            store_up=self._store_up,
            ages_s=ages,
            memory=self._memory if is_read else None,
        )

    async def _steer(self, pool: PoolContext, lease: Lease | None, at: float, now: float) -> None:
        """Decide for one pool; the leader acts on it. `now` is steady time, `at` Unix seconds."""
        freeze = freeze_of(self._shared.freezes, pool.model, at)
        experiment = self._shared.experiments.get(pool.model) if freeze is None else None
        context = in_turn(pool, experiment, self._turns_at)
        if experiment is not None and lease is not None:
            window = self._law.window(context.model, context.pool)
            window = window._replace(at=at - now + window.at) if window else None
            self._runner.measure(experiment, context, window, at)
        decided = self._law.decide(as_frozen(context, freeze), now, self._turns_at)
        result = held(context, self._runner.reported(experiment, context, decided), freeze)
        self._metrics.show_decision(context.model, context.pool, result)
        if lease is not None and self._leadership.lease is not None:
            await self._ask(lambda: self._act(context, result, lease))

    async def _forget(self, pools: Sequence[tuple[str, str]], lease: Lease | None, now: float) -> None:
        """Drop what is kept of pools that have been gone for long: in memory, and the leader in Redis."""
        gone = self._sightings.take(pools, self._shared.schedules, now)
        self._law.forget_all_but((engine.engine_id for engine in self._shared.engines), self._sightings.seen_at)
        for key in gone:
            self._recorded.pop(key, None)
            self._gains.forget(key)
            for kept in (self._published_at, self._lasting_at):
                kept.pop(key, None)
            if lease is not None and key in self._shared.schedules:
                await self._ask(partial(self._store.remove_schedule, *key, lease))

    def _read(self) -> bool:
        """Read the shared state; runs in a thread."""
        found = self._store.policies_by_model()
        policies = [item for item in found.values() if not isinstance(item, InvalidDocumentError)]
        unreadable = {model: item for model, item in found.items() if isinstance(item, InvalidDocumentError)}
        for model in unreadable.keys() - self._unreadable:
            _log.error("%s: its policy cannot be read, its pools are held: %s", model, unreadable[model])
        self._unreadable = frozenset(unreadable)
        read = _Shared(
            engines=tuple(self._store.engines()),
            policies={item.policy.model: item.policy for item in policies},
            schedules={(item.model, item.pool): item for item in self._store.schedules()},
            policy_versions={item.policy.model: item.version for item in policies},
            experiments={item.model: item for item in self._store.canaries()},
            freezes=self._store.freezes(),
            unreadable=self._unreadable,
            at=self._clock.now(),
        )
        before, self._shared = self._shared, read
        if self._leadership.lease is not None:
            for freeze in ended_within(self._shared.freezes.values(), before.at, self._shared.at):
                self._audit(freeze_ended(freeze, self._shared.at))
        self._look_at_memory()
        return True

    def _look_at_memory(self) -> None:
        """Ask now and then how full Redis is; runs in a thread."""
        if self._clock.monotonic() - self._memory_at < MEMORY_S:
            return
        self._memory, self._memory_at = None, self._clock.monotonic()
        with contextlib.suppress(StoreUnavailableError):  # it answered all else: it does not let us ask this
            self._memory = self._store.memory()

    def _read_stepped_back(self, found: list[tuple[str, str, str]]) -> None:
        """Add to `found` the hold-outs in which the last leader had stepped back; runs in a thread."""
        for model, pool in {(engine.model, engine.pool) for engine in self._shared.engines}:
            for decision in self._store.decisions(model, pool, 1):
                state = decision.evidence.get("hold_out")
                if isinstance(state, dict) and state.get("is_stepped_back"):
                    found.append((model, pool, str(state.get("compared"))))

    def _put_canary(self, experiment: Experiment, lease: Lease, at: float) -> None:
        """Write what a canary came to; runs in a thread."""
        self._store.put_canary(experiment, lease, at)
        self._shared.experiments[experiment.model] = experiment
        if experiment.outcome is not None:
            _log.info("%s: the canary ended: %s", experiment.model, experiment.outcome.value)
            self._audit(canary_ended(experiment, at))

    def _schedule(self, context: PoolContext, rows: Ranges, result: TickResult) -> Schedule:
        return Schedule(
            model=context.model,
            pool=context.pool,
            version=next_version(context),
            issued_at=self._clock.now(),
            valid_for_s=VALID_FOR_S,
            probe_ratio=result.probe_ratio,
            classes=rows,
            trial=result.trial,
            like_default=tuple(name for name in context.policy.class_names if name not in classes_in(rows)),
        )

    def _act(self, context: PoolContext, result: TickResult, lease: Lease) -> None:
        """Publish if there is something new or due, and record; runs in a thread."""
        key = (context.model, context.pool)
        now = self._clock.monotonic()
        self._gains.count(key, result.log_gain, self._clock.now(), lease)
        old = self._shared.schedules.get(key)
        is_new = is_due = False
        if result.publish is not None:
            schedule = self._schedule(context, result.publish, result)
            is_due = now - self._published_at.get(key, float("-inf")) >= RENEW_S - self._interval_s / 2
            is_new = old is None or _applied(old) != _applied(schedule)
            if is_due or is_new:
                self._store.publish_schedule(schedule, lease)
                if is_new and result.reason is Reason.STATIC_BETTER:
                    self._audit(stepped_back(old, schedule, self._clock.now()))
                self._published_at[key] = now
                self._shared.schedules[key] = schedule
                self._metrics.show_version(*key, schedule.version)
                old = schedule
        if is_new:
            _log.info("%s %s: version %d, %s", *key, old.version if old else 0, result.reason.value)
        elif self._is_repeated(key, result.reason, now):
            return
        self._recorded[key] = (result.reason, now)
        is_lasting = is_new or now - self._lasting_at.get(key, float("-inf")) >= LASTING_S
        if is_lasting:
            self._lasting_at[key] = now
        self._store.append_decision(
            Decision(
                at=self._clock.now(),
                model=context.model,
                pool=context.pool,
                mode=context.policy.mode,
                reason=result.reason.value,
                published=is_due or is_new,
                version=old.version if old else 0,
                schedule=replace(self._schedule(context, result.proposed, result), trial=None),
                predicted_gain_ratio=result.gain_ratio,
                evidence=result.evidence,
                k=result.k(result.publish),
            ),
            is_lasting=is_lasting,
        )
        if self._is_full:
            _log.info("Redis takes schedules and decisions again")
            self._is_full = False

    def _is_repeated(self, key: tuple[str, str], reason: Reason, now: float) -> bool:
        """Whether a quiet decision repeats one that was recorded a short while ago."""
        if reason not in _QUIET or key not in self._recorded:
            return False
        before, at = self._recorded[key]
        return before is reason and now - at < QUIET_RECORD_S

    async def _ask(self, question: Callable[[], bool | None]) -> bool | None:
        """Do `question` in a thread; what the store may answer badly is dealt with here, for every tick alike."""
        try:
            answer = await asyncio.to_thread(question)
        except StoreFullError as error:
            if not self._is_full:
                _log.warning("schedules stay as they are: %s", error)
            self._is_full = True
            return None
        except StoreUnavailableError as error:
            if self._store_up:
                _log.warning("going on with the last known state: %s", error)
            self._store_up = False
            return None
        except FencedError as error:
            _log.warning("%s", error)
            self._leadership.stand_down()
            return None
        except VersionConflictError as error:
            _log.info("not published, next tick tries again: %s", error)
            return None
        except InvalidDocumentError as error:
            _log.error("the shared state holds a document that cannot be read; mend or delete it: %s", error)
            return None
        if not self._store_up:
            _log.info("Redis answers again")
        self._store_up = True
        return answer
