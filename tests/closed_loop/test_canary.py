"""Canaries through the whole control loop: engines, law, windows, test, store."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from specpilot.controller.recording.explanation import explain
from specpilot.policy.canary import Canary, Lost, Outcome
from specpilot.policy.freeze import Freeze, Hold
from specpilot.policy.latency_goal import Slo, Statistic
from specpilot.policy.model_policy import ClassPolicy, Mode, Policy
from specpilot.policy.names import K_LIMIT
from tests.simulation.engine import MODEL, POOL
from tests.support.canary_rig import DEEP, SHALLOW, TIMES, experiment, k_published, rig_with, start, told, until_it_ends
from tests.support.loop_rig import Rig, text


async def test_a_better_policy_is_promoted_at_the_first_look_and_told() -> None:
    rig = await rig_with(SHALLOW, DEEP)
    found = await until_it_ends(rig)
    assert found.outcome is Outcome.BETTER
    assert len(found.blocks) == 6
    assert not found.lost
    assert (rig.store.stored[MODEL].policy, rig.store.stored[MODEL].version) == (DEEP, 2)
    assert found.evidence["throughput_gain_ratio"]["low"] > 0
    assert told(rig).evidence["canary"]["outcome"] == "better"
    told_to_a_person = text(explain(told(rig)))
    assert "canary: ended, better; 6 of 20 blocks, lost: none" in told_to_a_person
    assert "gain in inter-token latency: +" in told_to_a_person
    await rig.tick()
    assert k_published(rig) == 4
    assert sum(item.reason == "canary_ended" for item in rig.store.log) == 1


async def test_a_worse_policy_is_rolled_back_soon() -> None:
    rig = await rig_with(DEEP, SHALLOW)
    found = await until_it_ends(rig)
    assert found.outcome is Outcome.WORSE
    assert len(found.blocks) <= 4
    assert rig.store.stored[MODEL].policy == DEEP
    assert told(rig).evidence["canary"]["outcome"] == "worse"
    await rig.tick()
    assert k_published(rig) == 4


async def test_the_same_policy_is_inconclusive_and_goes() -> None:
    rig = await rig_with(DEEP, replace(DEEP, probe_ratio=0.004))
    found = await until_it_ends(rig)
    assert found.outcome is Outcome.INCONCLUSIVE
    assert rig.store.stored[MODEL].policy == DEEP


async def test_the_canary_has_its_share_of_the_time_and_every_tick_says_whose_turn_it_is() -> None:
    rig = await rig_with(SHALLOW, DEEP, share_ratio=0.25, max_duration_s=800.0)
    arms: Counter[str] = Counter()
    for _ in range(80):
        await rig.tick()
        arm = rig.store.log[-1].evidence["canary"]["arm"]
        arms[arm] += 1
        assert k_published(rig) == (4 if arm == "canary" else 1)
    assert arms == {"present": 60, "canary": 20}


async def test_engines_choose_by_the_guidance_of_the_window() -> None:
    rig = Rig.new()
    rig.store.put_policy(Policy(MODEL), None, 0.0)
    await rig.tick(40)
    start(rig, Canary(Policy(MODEL, k_max=1), tolerance_ratio=0.5, **TIMES))
    most: dict[str, list[float]] = {"present": [], "canary": []}
    for _ in range(100):
        await rig.tick()
        arm, guidance = rig.store.log[-1].evidence["canary"]["arm"], rig.store.published[MODEL, POOL].guidance_of("one")
        assert guidance.classes["default"].k_max == (1 if arm == "canary" else K_LIMIT)
        most[arm].append(rig.k())
    assert float(np.median(most["present"])) > 6
    assert float(np.median(most["canary"])) <= 1


async def test_without_traffic_it_ends_inconclusive_and_says_so() -> None:
    rig = await rig_with(SHALLOW, DEEP, max_duration_s=120.0)
    rig.fleet.sources = []
    found = await until_it_ends(rig)
    assert (found.outcome, found.lost) == (Outcome.NO_TRAFFIC, {Lost.NO_TRAFFIC: 6})
    assert rig.store.stored[MODEL].policy == SHALLOW


async def test_a_new_policy_of_the_operator_ends_it() -> None:
    rig = await rig_with(SHALLOW, DEEP)
    await rig.tick(30)
    rig.store.put_policy(replace(SHALLOW, static_k=2), None, 0.0)
    found = await until_it_ends(rig)
    assert found.outcome is Outcome.POLICY_CHANGED
    assert rig.store.stored[MODEL].policy.static_k == 2
    assert told(rig).evidence["canary"]["outcome"] == "policy_changed"


async def test_the_canary_of_a_pool_that_has_fallen_back_counts_while_an_slo_keeps_it_from_the_static_k() -> None:
    rig = Rig.new()
    present = Policy(
        MODEL,
        static_k=0,
        control_group_ratio=0.1,
        classes={"default": ClassPolicy(slo=Slo(tpot_ms={Statistic.MEAN: 2.5}))},
    )
    rig.store.put_policy(present, None, 0.0)
    await rig.tick(40)
    rig.loop._law._pools[MODEL, POOL].control_group.has_lost = True
    await rig.tick(3)
    start(rig, Canary(replace(present, probe_ratio=0.01), tolerance_ratio=0.5, **TIMES))
    await rig.tick(85)
    assert [block.index for block in experiment(rig).blocks] == [0, 1, 2, 3]


async def test_a_window_of_a_static_k_is_explained_as_such_and_a_freeze_does_not_hide_the_canary() -> None:
    rig = await rig_with(SHALLOW, DEEP)
    await rig.tick(25)
    for arm, k in (("present", 1), ("canary", 4)):
        while rig.store.log[-1].evidence["canary"]["arm"] != arm:
            await rig.tick()
        await rig.tick(2)
        found = rig.store.log[-1]
        assert (found.mode, found.reason, set(found.k.values())) == (Mode.OFF, "off", {float(k)})
    rig.store.frozen[MODEL] = Freeze(MODEL, Hold.STATIC, 0.0)
    await rig.tick(2)
    assert rig.store.log[-1].reason == "frozen"
    assert "\ncanary: runs; " in text(explain(rig.store.log[-1]))


@pytest.mark.parametrize("mode", [Mode.OFF, Mode.ADVISE])
async def test_the_canary_of_a_policy_that_does_not_choose_keeps_the_control_groups_windows(mode: Mode) -> None:
    rig, policy = Rig.new(), Policy(MODEL, control_group_ratio=0.4)
    rig.store.put_policy(policy, None, 0.0)
    await rig.tick(120)
    rig.store.put_policy(replace(policy, mode=mode), None, 0.0)
    await rig.tick(5)
    before = rig.store.log[-1].evidence["control_group"]
    assert before["windows"] > 0
    start(rig, Canary(policy, **TIMES))
    seen = []
    for _ in range(25):
        await rig.tick()
        seen.append((rig.store.log[-1].evidence["canary"]["arm"], rig.store.log[-1].mode))
        assert rig.store.log[-1].evidence["control_group"] == before
    assert set(seen) == {("present", mode), ("canary", Mode.ACT)}


@pytest.mark.parametrize(("outcome", "k"), [(Outcome.PROMOTED, 4), (Outcome.ABORTED, 1)])
async def test_an_operator_ends_it_by_hand(outcome: Outcome, k: int) -> None:
    rig = await rig_with(SHALLOW, DEEP)
    await rig.tick(30)
    found = experiment(rig)
    rig.store.put_canary(replace(found, version=found.version + 1, outcome=outcome, ended_at=1.0), None, 0.0)
    await rig.tick(2)
    assert k_published(rig) == k
    assert told(rig).evidence["canary"]["outcome"] == outcome.value
