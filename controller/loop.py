"""The outer loop: once every interval scrape, learn, decide, publish and record.

Order of one tick: read the shared state and renew the lease; scrape; take the evidence in (leader and stand-by
alike, so that a take-over starts from the same estimates and the same schedule); decide; the leader publishes what
changed, and renews what did not before it lapses; the leader records the decision (while nothing runs, one in
`QUIET_RECORD_S`). The latest are kept, and for longer those that changed the schedule and one in `LASTING_S`.

When Redis is silent the loop goes on with the state it read last: it learns and decides, but publishes nothing, and a
canary's turns stand still.
It says so once, and once when Redis is back. No failure of an engine or of Redis ends the loop.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from controller.conduct import Conduct
from controller.facts import Facts, Verdict
from controller.guard import Reason
from controller.lease import Leadership
from controller.metrics import ControllerMetrics
from controller.observation import Observation
from controller.pilot import Pilot
from controller.pools import facts_of, in_turn, next_version
from controller.record import Recorded
from policy.canary import Experiment
from policy.clock import Clock
from policy.errors import FencedError, InvalidDocumentError, StoreUnavailableError, VersionConflictError
from policy.store import Store
from policy.types import Decision, EngineRecord, Lease, Mode, Policy, Schedule

VALID_FOR_S = 60.0
"""Long enough to outlast a restart of Redis or of the controller, so that K stays through it."""
RENEW_S = 2.0
QUIET_RECORD_S = 10.0
LASTING_S = 60.0
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


class ControlLoop:
    """One controller's loop over all models and pools."""

    def __init__(  # noqa: PLR0913 - collaborators, each by name
        self,
        *,
        store: Store,
        leadership: Leadership,
        collector: Source,
        pilot: Pilot,
        metrics: ControllerMetrics,
        clock: Clock,
        interval_s: float = 0.5,
        default_mode: Mode = Mode.ACT,
        without: Sequence[str] = (),
        recorder: Callable[[Recorded], None] | None = None,
    ) -> None:
        self._store = store
        self._leadership = leadership
        self._collector = collector
        self._pilot = pilot
        self._metrics = metrics
        self._clock = clock
        self._interval_s = interval_s
        self._default_mode = default_mode
        self._without = tuple(without)
        self._recorder = recorder
        self._shared = _Shared()
        self._conduct = Conduct()
        self._turns_at = 0.0
        self._fence: int | None = None
        self._store_up = True
        self._published_at: dict[tuple[str, str], float] = {}
        self._recorded: dict[tuple[str, str], tuple[Reason, float]] = {}
        self._lasting_at: dict[tuple[str, str], float] = {}
        self._wake = asyncio.Event()
        self.ticks = 0

    def wake(self) -> None:
        """Begin the next tick now: an operator changed something."""
        self._wake.set()

    async def run(self) -> None:
        """Tick until cancelled; gives the lease up at the end."""
        try:
            while True:
                began = self._clock.monotonic()
                try:
                    await self.tick()
                except Exception:  # noqa: BLE001 - the loop outlives whatever nobody foresaw
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
        lease = await self._ask(self._read)
        shared = self._shared
        observations = await self._collector.scrape(shared.engines)
        now, at = self._clock.monotonic(), self._clock.now()
        self._turns_at = at if self._store_up else self._turns_at
        if lease is not None:
            if lease.fence != self._fence:
                self._fence = lease.fence
                self._pilot.take_over(now)
            for changed in self._conduct.judge(shared.experiments.values(), shared.policy_versions, at):
                await self._ask(lambda item=changed, on=lease: self._put_canary(item, on, at))
        if self._recorder:
            self._recorder(
                Recorded(at, now, shared.engines, dict(shared.policies), tuple(shared.schedules.values()),
                         tuple(observations), dict(shared.experiments), self._turns_at, lease.fence if lease else None,
                         self._default_mode, self._without)
            )  # fmt: skip
        self._pilot.forget_engines(engine.engine_id for engine in shared.engines)
        self._pilot.observe(observations)
        for pool in facts_of(shared.engines, shared.policies, shared.schedules.values(), self._default_mode):
            try:
                await self._steer(pool, lease, at, now)
            except Exception:  # noqa: BLE001 - one pool's trouble is not the others'
                _log.exception("%s %s: not steered in this tick; the next one starts anew", pool.model, pool.pool)
                self._metrics.count_error()
        if lease is not None:
            self._conduct.end_tick(shared.experiments.values(), at)
        self.ticks += 1
        ages = [(name, self._clock.monotonic() - at) for name, at in self._collector.scraped_at.items()]
        self._metrics.show_tick(
            self._clock.monotonic() - began,
            leads=self._leadership.lease is not None,
            store_up=self._store_up,
            ages_s=ages,
        )

    async def _steer(self, pool: Facts, lease: Lease | None, at: float, now: float) -> None:
        """Decide for one pool; the leader acts on it. `now` is steady time, `at` Unix seconds."""
        experiment = self._shared.experiments.get(pool.model)
        facts = in_turn(pool, experiment, self._turns_at)
        if experiment is not None and lease is not None:
            look = self._pilot.look(facts.model, facts.pool)
            look = look._replace(at=at - now + look.at) if look else None
            self._conduct.measure(experiment, facts, look, at)
        verdict = self._conduct.told(experiment, facts, self._pilot.steer(facts, now))
        schedule = self._schedule(facts, verdict)
        self._metrics.show_decision(facts.model, facts.pool, verdict.reason, verdict, verdict.k(verdict.wanted))
        if lease is not None and self._leadership.lease is not None:
            await self._ask(lambda: self._act(facts, verdict, schedule, lease))

    def _read(self) -> Lease | None:
        """Renew the lease and read the shared state; runs in a thread."""
        lease = self._leadership.renew()
        policies = self._store.policies()
        self._shared = _Shared(
            engines=tuple(self._store.engines()),
            policies={item.policy.model: item.policy for item in policies},
            schedules={(item.model, item.pool): item for item in self._store.schedules()},
            policy_versions={item.policy.model: item.version for item in policies},
            experiments={item.model: item for item in self._store.canaries()},
        )
        return lease

    def _put_canary(self, experiment: Experiment, lease: Lease, at: float) -> None:
        """Write what a canary came to; runs in a thread."""
        self._store.put_canary(experiment, lease, at)
        self._shared.experiments[experiment.model] = experiment
        if experiment.outcome is not None:
            _log.info("%s: the canary ended: %s", experiment.model, experiment.outcome.value)

    def _schedule(self, facts: Facts, verdict: Verdict) -> Schedule:
        return Schedule(
            model=facts.model,
            pool=facts.pool,
            version=next_version(facts, self._shared.engines),
            issued_at=self._clock.now(),
            valid_for_s=VALID_FOR_S,
            probe_ratio=verdict.probe_ratio,
            classes=verdict.publish,
        )

    def _act(self, facts: Facts, verdict: Verdict, schedule: Schedule, lease: Lease) -> None:
        """Publish if there is something new or due, and record; runs in a thread."""
        key = (facts.model, facts.pool)
        now = self._clock.monotonic()
        old = facts.in_force
        is_due = now - self._published_at.get(key, float("-inf")) >= RENEW_S - self._interval_s / 2
        is_new = old is None or old.classes != schedule.classes
        if is_due or is_new:
            self._store.publish_schedule(schedule, lease)
            self._published_at[key] = now
            self._shared.schedules[key] = schedule
            self._metrics.show_version(*key, schedule.version)
        if is_new:
            _log.info("%s %s: version %d, %s", *key, schedule.version, verdict.reason.value)
        elif self._is_told(key, verdict.reason, now):
            return
        self._recorded[key] = (verdict.reason, now)
        is_lasting = is_new or now - self._lasting_at.get(key, float("-inf")) >= LASTING_S
        if is_lasting:
            self._lasting_at[key] = now
        self._store.append_decision(
            Decision(
                at=self._clock.now(),
                model=facts.model,
                pool=facts.pool,
                mode=facts.policy.mode,
                reason=verdict.reason.value,
                published=is_due or is_new,
                version=schedule.version if is_due or is_new else (old.version if old else 0),
                schedule=Schedule(
                    facts.model, facts.pool, schedule.version, schedule.issued_at, VALID_FOR_S,
                    verdict.probe_ratio, verdict.wanted,
                ),
                predicted_gain_ratio=verdict.gain_ratio,
                evidence=verdict.evidence,
                k=verdict.k(verdict.publish),
            ),
            is_lasting=is_lasting,
        )  # fmt: skip

    def _is_told(self, key: tuple[str, str], reason: Reason, now: float) -> bool:
        """Whether a quiet decision repeats one that was recorded a short while ago."""
        if reason not in _QUIET or key not in self._recorded:
            return False
        before, at = self._recorded[key]
        return before is reason and now - at < QUIET_RECORD_S

    async def _ask(self, question: Callable[[], Lease | None] | Callable[[], None]) -> Lease | None:
        """Do `question` in a thread; what the store may answer badly is dealt with here, for every tick alike."""
        try:
            answer = await asyncio.to_thread(question)
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
