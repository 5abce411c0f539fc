"""Guidance: what engines that choose K get of a policy, and of the fleet's acceptance."""

from dataclasses import replace

import pytest

from specpilot.controller.recording.explanation import explain
from specpilot.policy.latency_goal import Slo, Statistic
from specpilot.policy.model_policy import Mode
from specpilot.policy.schedule import Cause, ClassGuidance, Guidance, Objective, Override
from tests.simulation.engine import MODEL, POOL
from tests.support.loop_rig import ENGINES_CHOOSE, Rig, text


async def test_where_engines_choose_they_get_the_policys_requirements_and_static_k(rig: Rig) -> None:
    rig.store.put_policy(ENGINES_CHOOSE, None, 0.0)
    await rig.tick(10)
    schedule, newest = rig.store.published[MODEL, POOL], rig.store.log[-1]
    assert schedule.guidance == Guidance(
        Objective.LATENCY,
        {
            "default": ClassGuidance(k_max=5),
            "batch": ClassGuidance(1.0, 6, 6),
            "code": ClassGuidance(2.0, 0, 5, 900.0, Slo(tpot_ms={Statistic.MEAN: 900.0})),
        },
        ENGINES_CHOOSE.probe_ratio,
        static_k=1,
    )
    assert newest.reason == "adaptive"
    assert newest.k["default"] == pytest.approx(5, abs=0.2)  # measured, within the bounds
    explained = explain(newest)
    assert explained["guidance"]["classes"]["batch"]["k_max"] == 6
    assert explained["k"] == newest.k
    assert "class default: 100% of the traffic, K 5.0" in text(explained)
    assert newest.evidence["throughput"] > 0


@pytest.mark.parametrize("mode", [Mode.OFF, Mode.ADVISE])
async def test_another_mode_puts_the_static_k_over_the_guidance(rig: Rig, mode: Mode) -> None:
    rig.store.put_policy(ENGINES_CHOOSE, None, 0.0)
    await rig.tick(5)
    before = rig.store.published[MODEL, POOL]
    rig.store.put_policy(replace(ENGINES_CHOOSE, mode=mode), None, 0.0)
    await rig.tick(4)
    now = rig.store.published[MODEL, POOL]
    assert now.version > before.version
    assert now.guidance == replace(before.guidance, override=Override(1, Cause(mode.value)))
    assert (rig.store.log[-1].reason, rig.k()) == (mode.value, 1.0)


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
