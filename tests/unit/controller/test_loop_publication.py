"""When the loop publishes and records, what a mode changes of it, and what it shows Prometheus."""

import re

from specpilot.controller.pools import VALID_FOR_S
from specpilot.controller.recording.explanation import explain, text
from specpilot.policy.model_policy import Mode, Policy
from tests.simulation.engine import MODEL, POOL
from tests.support.loop_rig import Rig, registered


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
    assert len(rig.recorded) == 35


async def test_an_unchanged_schedule_is_published_again_every_five_seconds(rig: Rig) -> None:
    rig.store.stored = {}
    rig.store.put_policy(Policy(model=MODEL, mode=Mode.OFF), None, 0.0)
    versions = []
    for _ in range(20):
        await rig.tick()
        versions.append(rig.store.published[MODEL, POOL].version)
    assert max(versions.count(version) for version in versions[2:]) <= 5 <= VALID_FOR_S / 10
    assert 4 <= len(set(versions)) <= 6


async def test_metrics_say_whether_schedules_are_renewed(rig: Rig) -> None:
    """In `advise` an engine's schedule grows old by design, after the static K was published once."""

    def publishing() -> float | None:
        labels = {"model_name": MODEL, "pool": POOL}
        return rig.metrics.registry.get_sample_value("specpilot_controller_publishing", labels)

    await rig.tick(2)
    assert publishing() == 1.0
    rig.store.put_policy(Policy(model=MODEL, mode=Mode.ADVISE), None, 0.0)
    await rig.tick(4)
    assert publishing() == 0.0


async def test_a_policy_takes_effect_in_the_next_tick(rig: Rig) -> None:
    await rig.tick(2)
    rig.store.put_policy(Policy(model=MODEL, mode=Mode.OFF, static_k=6), None, 0.0)
    await rig.tick()
    assert {item.k for ranges in rig.store.published[MODEL, POOL].classes.values() for item in ranges} == {6}
    assert rig.store.log[-1].reason == "off"


async def test_advise_publishes_nothing_where_engines_hold_nothing(rig: Rig) -> None:
    rig.store.heartbeat(registered("one"), 1e9)
    rig.store.put_policy(Policy(model=MODEL, mode=Mode.ADVISE), None, 0.0)
    await rig.tick(20)
    assert rig.store.published == {}
    assert rig.store.log[-1].published is False
    assert rig.store.log[-1].k == {"default": 3}  # the engines' own static K, not the K that is advised


async def test_advise_after_act_withdraws_the_schedule_once(rig: Rig) -> None:
    """Engines hold a schedule that nobody renews, so to fall silent would leave K steered."""
    await rig.tick(20)
    before = rig.store.published[MODEL, POOL]
    rig.store.put_policy(Policy(model=MODEL, mode=Mode.ADVISE, static_k=2), None, 0.0)
    await rig.tick(20)
    found = rig.store.published[MODEL, POOL]
    assert {k for ranges in found.classes.values() for _, _, k in ranges} == {2}
    assert (found.version, found.probe_ratio) == (before.version + 1, 0.0)


async def test_advise_withdraws_what_engines_hold_and_redis_lost(rig: Rig) -> None:
    await rig.tick(20)
    held = rig.store.published[MODEL, POOL].version
    rig.store.heartbeat(registered("one", schedule_version=held), 1e9)
    rig.store.put_policy(Policy(model=MODEL, mode=Mode.ADVISE, static_k=2), None, 0.0)
    rig.store.published.clear()
    await rig.tick(20)
    found = rig.store.published[MODEL, POOL]
    assert {k for ranges in found.classes.values() for _, _, k in ranges} == {2}
    assert found.version == held + 1


async def test_another_probe_ratio_is_published_at_once(rig: Rig) -> None:
    await rig.tick(30)
    rig.store.put_policy(Policy(model=MODEL, probe_ratio=0.0), None, 0.0)
    await rig.tick(1)
    assert rig.store.published[MODEL, POOL].probe_ratio == 0.0


async def test_the_deprecated_metrics_show_what_the_new_ones_show(rig: Rig) -> None:
    await rig.tick(10)
    page = rig.page()
    for name in ("predicted_{}_tokens_per_second", "measured_{}_tokens_per_second"):
        new, old = (
            sorted(re.findall(rf"^specpilot_controller_{name.format(word)}(.*)$", page, re.MULTILINE))
            for word in ("weighted_throughput", "goodput")
        )
        assert new == old
        assert new


async def test_unknown_is_never_shown_as_a_number(rig: Rig) -> None:
    await rig.tick(3)
    assert "NaN" not in rig.page()
    assert "nan" not in text(explain(rig.store.log[-1]))
