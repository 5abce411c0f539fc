"""Guidance: what engines that choose K get of a policy, and of the fleet's acceptance."""

from dataclasses import replace

import pytest

from specpilot.controller.recording.explanation import explain, text
from specpilot.policy.model_policy import Mode
from specpilot.policy.schedule import ClassGuidance, Guidance, Objective
from tests.simulation.engine import MODEL, POOL
from tests.support.loop_rig import ENGINES_CHOOSE, Rig, k_of


async def test_where_engines_choose_they_get_the_policys_wishes_and_the_static_k_for_the_first_second(rig: Rig) -> None:
    rig.store.put_policy(ENGINES_CHOOSE, None, 0.0)
    await rig.tick(10)
    schedule, newest = rig.store.published[MODEL, POOL], rig.store.log[-1]
    assert schedule.guidance == Guidance(
        Objective.THROUGHPUT,
        {"default": ClassGuidance(k_max=5), "batch": ClassGuidance(1.0, 6, 6), "code": ClassGuidance(2.0, 0, 5, 900.0)},
        ENGINES_CHOOSE.probe_ratio,
    )
    assert {name: k_of(schedule.classes, name=name) for name in ("default", "code", "batch")} == {
        "default": 1, "code": 1, "batch": 6,
    }  # fmt: skip
    assert schedule.probe_ratio == ENGINES_CHOOSE.probe_ratio
    assert newest.reason == "adaptive"
    assert k_of(newest.schedule.classes) == 5  # the estimate of the engines' choice, within the bounds
    assert newest.k["default:7"] == 5
    explained = explain(newest)
    assert explained["guidance"]["classes"]["batch"]["k_max"] == 6
    assert "the engines' own choice" in text(explained)
    throughput = newest.evidence["throughput"]
    assert throughput["predicted_in_force"] == pytest.approx(throughput["measured"], rel=0.15)


@pytest.mark.parametrize("mode", [Mode.OFF, Mode.ADVISE])
async def test_another_mode_takes_the_guidance_away(rig: Rig, mode: Mode) -> None:
    rig.store.put_policy(ENGINES_CHOOSE, None, 0.0)
    await rig.tick(5)
    version = rig.store.published[MODEL, POOL].version
    rig.store.put_policy(replace(ENGINES_CHOOSE, mode=mode), None, 0.0)
    await rig.tick(2)
    now = rig.store.published[MODEL, POOL]
    assert (now.guidance, now.version > version, k_of(now.classes)) == (None, True, 1)


async def test_engines_get_the_fleets_acceptance_with_each_renewal_and_no_more_often(rig: Rig) -> None:
    rig.store.put_policy(ENGINES_CHOOSE, None, 0.0)
    await rig.tick(10)
    before = rig.store.published[MODEL, POOL]
    assert before.fleet is not None
    assert max(max(row) for row in before.fleet.trials) == pytest.approx(200.0)
    assert rig.store.log[-1].schedule.fleet is None
    versions = set()
    for _ in range(20):
        await rig.tick()
        versions.add(rig.store.published[MODEL, POOL].version)
    assert len(versions) <= 5
    assert rig.store.published[MODEL, POOL].fleet != before.fleet


async def test_an_idle_pool_keeps_its_guidance_and_renews_it(rig: Rig) -> None:
    rig.store.put_policy(ENGINES_CHOOSE, None, 0.0)
    await rig.tick(5)
    before = rig.store.published[MODEL, POOL]
    rig.fleet.sources = []
    await rig.tick(10)
    now = rig.store.published[MODEL, POOL]
    assert rig.store.log[-1].reason == "idle"
    assert (now.guidance, now.version > before.version) == (before.guidance, True)
