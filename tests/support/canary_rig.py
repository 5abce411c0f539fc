"""A whole control loop in virtual time that tries one static K beside another, or any canary."""

from specpilot.policy.canary import Canary, Experiment
from specpilot.policy.model_policy import Mode, Policy
from specpilot.policy.records import Decision
from tests.simulation.engine import MODEL, POOL
from tests.support.loop_rig import Rig

SHALLOW = Policy(MODEL, mode=Mode.OFF, static_k=1)
DEEP = Policy(MODEL, mode=Mode.OFF, static_k=4)
TIMES = {"window_s": 10.0, "min_duration_s": 120.0, "max_duration_s": 400.0}


async def rig_with(present: Policy, canary: Policy, **changes: float) -> Rig:
    rig = Rig.new()
    rig.store.put_policy(present, None, 0.0)
    await rig.tick(5)
    start(rig, Canary(canary, **{**TIMES, **changes}))
    return rig


def start(rig: Rig, canary: Canary) -> None:
    version = rig.store.stored[MODEL].version
    rig.store.put_canary(Experiment(1, "some-id", canary, version, rig.clock.now()), None, 0.0)


def experiment(rig: Rig) -> Experiment:
    return rig.store.tried[MODEL]


async def until_it_ends(rig: Rig, ticks: int = 420) -> Experiment:
    for _ in range(ticks):
        if not experiment(rig).is_running:
            break
        await rig.tick()
    await rig.tick()
    return experiment(rig)


def told(rig: Rig) -> Decision:
    return next(item for item in rig.store.log if item.reason == "canary_ended")


def k_published(rig: Rig) -> int | None:
    """K of an engine by the schedule: both policies are a static K."""
    guidance = rig.store.published[MODEL, POOL].guidance_of("one")
    assert guidance.override is not None
    return guidance.override.k
