"""When the loop publishes and records, what a mode changes of it, and what it shows Prometheus."""

from specpilot.controller.recording.explanation import explain
from specpilot.policy.model_policy import Mode, Policy
from specpilot.policy.schedule import Cause, Override
from tests.simulation.engine import MODEL, POOL
from tests.support.loop_rig import Rig, registered, text


async def test_the_first_schedule_is_newer_than_what_engines_report(rig: Rig) -> None:
    await rig.tick()
    assert rig.store.published[MODEL, POOL].version == 42
    assert rig.store.log[-1].version == 42
    assert rig.store.log[-1].published


async def test_every_busy_tick_is_recorded_and_a_quiet_one_now_and_then(rig: Rig) -> None:
    await rig.tick(10)
    assert len(rig.store.log) >= 9
    rig.fleet.sources = []
    await rig.tick(5)
    count = len(rig.store.log)
    await rig.tick(20)
    assert rig.store.log[-1].reason == "idle"
    assert len(rig.store.log) - count <= 3


async def test_an_unchanged_schedule_is_published_again_every_five_seconds(rig: Rig) -> None:
    rig.store.stored = {}
    rig.store.put_policy(Policy(model=MODEL, mode=Mode.OFF), None, 0.0)
    versions = []
    for _ in range(20):
        await rig.tick()
        versions.append(rig.store.published[MODEL, POOL].version)
    assert max(versions.count(version) for version in versions[2:]) <= 5
    assert 4 <= len(set(versions)) <= 6


async def test_a_policy_takes_effect_in_the_next_tick(rig: Rig) -> None:
    await rig.tick(2)
    rig.store.put_policy(Policy(model=MODEL, mode=Mode.OFF, static_k=6), None, 0.0)
    await rig.tick()
    assert rig.override == Override(6, Cause.OFF)
    assert rig.store.log[-1].reason == "off"
    rig.store.put_policy(Policy(model=MODEL, mode=Mode.OFF, static_k=6, probe_ratio=0.0), None, 0.0)
    await rig.tick()
    assert rig.store.published[MODEL, POOL].guidance.probe_ratio == 0.0


async def test_a_schedule_that_redis_lost_is_published_again_with_a_newer_version(rig: Rig) -> None:
    await rig.tick(20)
    held = rig.store.published[MODEL, POOL].version
    rig.store.heartbeat(registered("one", schedule_version=held), 1e9)
    rig.store.published.clear()
    await rig.tick()
    assert rig.store.published[MODEL, POOL].version == held + 1


async def test_unknown_is_never_shown_as_a_number(rig: Rig) -> None:
    await rig.tick(3)
    assert "NaN" not in rig.page()
    assert "nan" not in text(explain(rig.store.log[-1]))
