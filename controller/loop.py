"""The control loop: every interval it scrapes, updates estimates, decides what to publish, publishes and records.

Engines choose K themselves; `law.tick` describes what the controller decides.

Order of one tick: read the shared state; scrape; update the estimates; decide; publish and record (`publication`). Only
the leader does the last step. A stand-by does all others, so that it takes over with the same estimates and the same
schedule. The lease is renewed in a thread of its own (`lease`).

A policy that cannot be read affects its own model only: that model's pools keep their schedules. Pools without an
engine for `FORGET_S` are dropped, with their schedules.

When Redis does not answer, the loop goes on with the state that it read last (`shared_state`): it updates estimates and
decides, but publishes nothing, and the windows of experiments do not advance. No failure of an engine or of Redis ends
the loop.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from specpilot.controller.decision.context import PoolContext, TickResult
from specpilot.controller.decision.decider import Decider
from specpilot.controller.decision.reason import Reason
from specpilot.controller.estimation.observation import Observation
from specpilot.controller.events import canary_ended
from specpilot.controller.experiments.runner import Runner
from specpilot.controller.lease import Leadership
from specpilot.controller.metrics import ControllerMetrics
from specpilot.controller.pools import Sightings, in_window, of_steerable, pool_contexts
from specpilot.controller.publication import Publisher
from specpilot.controller.shared_state import SharedReader
from specpilot.policy.audit import AuditEntry
from specpilot.policy.canary import Experiment
from specpilot.policy.clock import Clock
from specpilot.policy.errors import StoreUnavailableError
from specpilot.policy.freeze import freeze_of
from specpilot.policy.model_policy import Mode
from specpilot.policy.names import PoolKey
from specpilot.policy.records import EngineRecord, Lease
from specpilot.policy.store import Store

HANG_S = 10.0
"""Seconds without progress after which the loop counts as hung: it is not ready, and its lease is not renewed."""
RESUME_TRIES = 20
"""Ticks in which a new leader asks Redis whether a pool has fallen back, before it leads without the answer."""
_log = logging.getLogger(__name__)


class Source(Protocol):
    """The source of observations.

    `scraped_at` is the steady time of each engine's last scrape; before the first, the time of its registration.
    """

    scraped_at: dict[str, float]

    async def scrape(self, engines: Sequence[EngineRecord]) -> list[Observation]:
        """Return an observation of every engine that could be read; must not raise for the others."""


class ControlLoop:
    """One controller's loop over all models and pools."""

    def __init__(  # noqa: PLR0913 - collaborators, each by name
        self,
        *,
        store: Store,
        leadership: Leadership,
        collector: Source,
        law: Decider,
        metrics: ControllerMetrics,
        clock: Clock,
        interval_s: float = 0.5,
        default_mode: Mode = Mode.ACT,
        audit: Callable[[AuditEntry], None] | None = None,
    ) -> None:
        self._store = store
        self._leadership = leadership
        self._collector = collector
        self._law = law
        self._metrics = metrics
        self._clock = clock
        self._interval_s = interval_s
        self._default_mode = default_mode
        self._audit = audit or (lambda _: None)
        self._shared = SharedReader(store, leadership, clock, self._audit)
        self._publisher = Publisher(store, metrics, self._audit, clock, interval_s)
        self._runner = Runner()
        self._windows_at = 0.0
        self._fence: int | None = None
        self._resume_tries: dict[PoolKey, int] = {}
        self._wake = asyncio.Event()
        self._sightings = Sightings()
        self._progress_at = clock.monotonic()
        self.ticks = 0

    @property
    def is_hanging(self) -> bool:
        """Whether the loop has finished neither a tick nor a pool for `HANG_S` beyond its interval."""
        return self._clock.monotonic() - self._progress_at > HANG_S + self._interval_s

    def wake(self) -> None:
        """Begin the next tick now, after a write of the admin API."""
        self._wake.set()

    async def run(self) -> None:
        """Tick until cancelled; at the end give up the lease."""
        self._leadership.keep(lambda: not self.is_hanging)
        try:
            while True:
                began = self._clock.monotonic()
                try:
                    await self.tick()
                except Exception:  # noqa: BLE001 - no unforeseen fault may end the loop
                    _log.exception("this tick failed; the next one starts afresh")
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
                _log.info("the lease could not be released and expires: %s", error)

    async def tick(self) -> None:
        """Do one round."""
        began = self._clock.monotonic()
        is_read = await self._shared.read()
        lease, shared = self._leadership.lease if is_read else None, self._shared.state
        observations = await self._collector.scrape(shared.engines)
        now, at = self._clock.monotonic(), self._clock.now()
        self._windows_at = at if self._shared.is_up else self._windows_at
        if lease is not None:
            if lease.fence != self._fence:
                self._begin_to_lead(lease)
            await self._resume()
            for changed in self._runner.judge(shared.experiments.values(), shared.policy_versions, at):
                await self._shared.ask(partial(self._put_canary, changed, lease, at))
        self._law.observe(of_steerable(observations, shared.engines))
        pools = pool_contexts(shared.engines, shared.policies, shared.schedules.values(), self._default_mode)
        await self._forget([(pool.model, pool.pool) for pool in pools], lease, now)
        for pool in pools:
            self._progress_at = self._clock.monotonic()
            try:
                await self._steer(pool, lease, at, now)
            except Exception:  # noqa: BLE001 - a fault in one pool must not stop the others
                _log.exception("%s %s: not steered in this tick; the next one starts afresh", pool.model, pool.pool)
                self._metrics.count_error()
        if self._shared.is_up:
            frozen = {model for model in shared.experiments if freeze_of(shared.freezes, model, at)}
            with_pool = {pool.model for pool in pools if pool.k_max > 0}
            self._runner.end_tick(shared.experiments.values(), with_pool, frozen, at)
        self.ticks += 1
        self._progress_at = self._clock.monotonic()
        ages = [(name, self._clock.monotonic() - at) for name, at in self._collector.scraped_at.items()]
        self._metrics.show_tick(
            self._clock.monotonic() - began,
            leads=self._leadership.lease is not None,
            store_up=self._shared.is_up,
            ages_s=ages,
            memory=self._shared.memory if is_read else None,
        )

    def _begin_to_lead(self, lease: Lease) -> None:
        """Drop the decisions made in stand-by, which were not published."""
        self._fence = lease.fence
        self._resume_tries.clear()
        self._shared.begin_to_lead()
        self._publisher.begin_to_lead()

    async def _resume(self) -> None:
        """Take over each pool, led for the first time, that fell back under the last leader.

        A pool is not led until Redis has answered this question, or was asked `RESUME_TRIES` times.
        """
        for key in sorted({(engine.model, engine.pool) for engine in self._shared.state.engines}):
            tries = self._resume_tries.get(key, 0)
            if tries < RESUME_TRIES:
                await self._shared.ask(partial(self._read_lost, key))
                self._resume_tries[key] = tries + 1 if not self._shared.is_up else RESUME_TRIES
                self._progress_at = self._clock.monotonic()

    async def _steer(self, pool: PoolContext, lease: Lease | None, at: float, now: float) -> None:
        """Decide for one pool; the leader acts on it. `now` is steady time, `at` Unix seconds."""
        freeze = freeze_of(self._shared.state.freezes, pool.model, at)
        is_readable = pool.model not in self._shared.state.unreadable
        if not is_readable and freeze is None:
            return  # the schedule in force stays until the policy can be read
        experiment = self._shared.state.experiments.get(pool.model)
        if experiment is not None and freeze is not None and not experiment.is_running:
            experiment = None  # its end is reported after the freeze
        context = replace(in_window(pool, None if freeze else experiment, self._windows_at), freeze=freeze)
        decided = self._decide(context, now) if is_readable else _undecided(context)
        self._runner.add(experiment, decided)
        result = self._runner.reported(experiment, context, decided)
        self._metrics.show_decision(context.model, context.pool, result)
        is_resumed = self._resume_tries.get((pool.model, pool.pool)) == RESUME_TRIES
        if lease is not None and self._leadership.lease is not None and is_resumed:
            await self._shared.ask(lambda: self._act(context, result, lease))

    def _decide(self, context: PoolContext, now: float) -> TickResult:
        """Return the decision. If the control law fails for a frozen model, the freeze still publishes a schedule."""
        try:
            return self._law.decide(context, now, self._windows_at)
        except Exception:
            if context.freeze is None:
                raise
            _log.exception("%s %s: the law fails; the freeze's schedule is published", context.model, context.pool)
            self._metrics.count_error()
            return _undecided(context)

    async def _forget(self, pools: Sequence[PoolKey], lease: Lease | None, now: float) -> None:
        """Drop the state of pools that are gone: in memory, and as leader their schedules in Redis."""
        shared = self._shared.state
        expired = self._sightings.expire_pools(pools, shared.schedules, now)
        self._law.forget_all_but((engine.engine_id for engine in shared.engines), self._sightings.seen_at)
        for key in expired:
            self._publisher.forget(key)
            self._resume_tries.pop(key, None)
            if lease is not None and key in shared.schedules:
                await self._shared.ask(partial(self._store.remove_schedule, *key, lease))

    def _read_lost(self, key: PoolKey) -> None:
        """Take over a pool's control group if the pool fell back under the last leader; runs in a thread."""
        for decision in self._store.decisions(*key, 1):
            state = decision.evidence.get("control_group")
            if isinstance(state, dict) and state.get("has_lost"):
                self._law.resume(*key, str(state.get("compared")))
                self._publisher.resume(key)

    def _put_canary(self, experiment: Experiment, lease: Lease, at: float) -> None:
        """Write the new state of a canary; runs in a thread."""
        self._store.put_canary(experiment, lease, at)
        self._shared.state.experiments[experiment.model] = experiment
        if experiment.outcome is not None:
            if experiment.outcome.is_promotion:
                self._shared.state.policies[experiment.model] = experiment.canary.policy
            _log.info("%s: the canary ended: %s", experiment.model, experiment.outcome.value)
            self._audit(canary_ended(experiment, at))

    def _act(self, context: PoolContext, result: TickResult, lease: Lease) -> None:
        """Publish and record, and add the compared window to the daily gain, whichever is refused; runs in a thread."""
        try:
            if self._publisher.write(context, result, self._shared.state.schedules, lease):
                self._shared.was_written()
        finally:
            self._publisher.add_gains((context.model, context.pool), result.log_gains, lease)


def _undecided(context: PoolContext) -> TickResult:
    """Return the result for a frozen pool about which nothing can be decided: the freeze alone, without evidence."""
    assert context.freeze is not None
    frozen = context.frozen_guidance(context.freeze)
    present = context.in_force.guidance if context.in_force is not None else None
    guidance = frozen if present is None else replace(present, override=frozen.override)
    return TickResult(Reason.FROZEN, guidance, evidence={})
