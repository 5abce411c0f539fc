"""Groups registered engines into pools, builds the context of each pool's decision, and the schedule from it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from specpilot.controller.decision.context import CanaryWindow, PoolContext, TickResult
from specpilot.controller.estimation.observation import Observation
from specpilot.controller.experiments.canary import plan_of
from specpilot.policy.canary import Experiment
from specpilot.policy.model_policy import Mode, Policy
from specpilot.policy.names import PoolKey
from specpilot.policy.records import EngineRecord
from specpilot.policy.schedule import Guidance, Schedule

FORGET_S = 600.0
"""Longer than a rolling restart of all engines, so that a pool's estimates outlive it."""


@dataclass(slots=True)
class Sightings:
    """The steady time at which each pool (model and pool) last had engines."""

    seen_at: dict[PoolKey, float] = field(default_factory=dict)

    def expire_pools(self, pools: Iterable[PoolKey], scheduled: Iterable[PoolKey], now: float) -> list[PoolKey]:
        """Return the pools that have had no engine for `FORGET_S`; each is returned once.

        `pools` have engines at `now`. `scheduled` have a schedule; one that was never seen counts as seen at `now`.
        """
        unseen = (key for key in scheduled if key not in self.seen_at)
        self.seen_at |= dict.fromkeys((*pools, *unseen), now)
        expired = [key for key, seen_at in self.seen_at.items() if now - seen_at > FORGET_S]
        for key in expired:
            del self.seen_at[key]
        return expired


def pool_contexts(
    engines: Iterable[EngineRecord],
    policies: Mapping[str, Policy],
    schedules: Iterable[Schedule],
    default_mode: Mode,
) -> list[PoolContext]:
    """Return the context of every pool with engines, in order of model and pool.

    If the engines of a pool differ, the smallest K_max and static K apply. Engines that cannot speculate (K_max 0)
    follow no schedule and do not count.
    """
    pools: dict[PoolKey, list[EngineRecord]] = {}
    for engine in engines:
        pools.setdefault((engine.model, engine.pool), []).append(engine)
    in_force = {(schedule.model, schedule.pool): schedule for schedule in schedules}
    contexts = []
    for (model, pool), members in sorted(pools.items()):
        able = [member for member in members if member.k_max > 0] or members
        contexts.append(
            PoolContext(
                model=model,
                pool=pool,
                policy=policies.get(model) or Policy(model=model, mode=default_mode),
                k_max=min(member.k_max for member in able),
                static_k=min(member.static_k for member in able),
                engines=tuple(member.engine_id for member in members if member.k_max > 0),
                in_force=in_force.get((model, pool)),
                engines_version=max(member.schedule_version for member in members),
            )
        )
    return contexts


def of_steerable(observations: Iterable[Observation], engines: Iterable[EngineRecord]) -> list[Observation]:
    """Return the observations of engines that can speculate; the steps of other engines do not depend on K."""
    steerable = {engine.engine_id for engine in engines if engine.k_max > 0}
    return [observation for observation in observations if observation.engine_id in steerable]


def in_window(context: PoolContext, experiment: Experiment | None, at: float) -> PoolContext:
    """Return `context` in the canary's window at `at` (Unix seconds); unchanged when none runs.

    After its last block the present policy is in force, until the leader has ended the experiment.
    """
    if experiment is None or not experiment.is_running or at < experiment.started_at:
        return context
    plan, canary = plan_of(experiment), experiment.canary
    is_over = plan.window(at) >= canary.max_blocks * canary.windows
    is_drawn = not is_over and plan.is_drawn(context.pool, at)
    return replace(context, window=CanaryWindow(plan, canary.policy, is_drawn))


def next_version(context: PoolContext) -> int:
    """Return a version that is newer than those of Redis and of every engine, even if Redis lost its data."""
    return max(context.engines_version, context.in_force.version if context.in_force else 0) + 1


def schedule_of(context: PoolContext, result: TickResult, guidance: Guidance, version: int, at: float) -> Schedule:
    """Return the schedule of `result` with its `guidance`; `at` is Unix seconds."""
    return Schedule(
        model=context.model,
        pool=context.pool,
        version=version,
        issued_at=at,
        guidance=guidance,
        fleet=result.fleet,
        drawn=result.draw.engines,
        drawn_until=result.draw.until,
        drawn_guidance=result.drawn_guidance,
    )
