"""Groups registered engines into pools and says what the law must know of each."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from controller.canary import turn
from controller.facts import Facts
from policy.canary import Arm, Experiment
from policy.types import EngineRecord, Mode, Policy, Schedule


def facts_of(
    engines: Iterable[EngineRecord],
    policies: Mapping[str, Policy],
    schedules: Iterable[Schedule],
    default_mode: Mode,
) -> list[Facts]:
    """Return the facts of every pool with engines, in order of model and pool.

    Where engines of a pool differ the most careful value holds: the smallest K_max and static K, since an engine
    refuses a schedule beyond its K_max, and the largest number of running requests, since ranges must cover it.
    """
    pools: dict[tuple[str, str], list[EngineRecord]] = {}
    for engine in engines:
        pools.setdefault((engine.model, engine.pool), []).append(engine)
    in_force = {(schedule.model, schedule.pool): schedule for schedule in schedules}
    return [
        Facts(
            model=model,
            pool=pool,
            policy=policies.get(model) or Policy(model=model, mode=default_mode),
            k_max=min(member.k_max for member in members),
            static_k=min(member.static_k for member in members),
            max_num_seqs=max(member.max_num_seqs for member in members),
            in_force=in_force.get((model, pool)),
        )
        for (model, pool), members in sorted(pools.items())
    ]


def in_turn(facts: Facts, experiment: Experiment | None, at: float) -> Facts:
    """Return `facts` with the policy whose turn it is at `at` (Unix seconds), or with the arm that a promotion left."""
    if experiment is None:
        return facts
    if experiment.outcome is not None and experiment.outcome.is_promotion:
        return replace(facts, heir=Arm.CANARY)
    now = turn(experiment, facts.pool, at)
    if now is None:
        return facts
    policy = experiment.canary.policy if now.arm is Arm.CANARY else facts.policy
    return replace(facts, policy=policy, arm=now.arm)


def next_version(facts: Facts, engines: Sequence[EngineRecord]) -> int:
    """Return a version that Redis and every engine of the pool take for newer, even if Redis lost its data."""
    seen = [engine.schedule_version for engine in engines if (engine.model, engine.pool) == (facts.model, facts.pool)]
    return max([*seen, facts.in_force.version if facts.in_force else 0]) + 1
