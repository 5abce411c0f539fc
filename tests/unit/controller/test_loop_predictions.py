"""The throughput that the loop predicts for what engines run, beside what they measure."""

from dataclasses import replace

import pytest

from specpilot.policy.model_policy import ClassPolicy, Mode, Policy
from tests.simulation.engine import MODEL, POOL
from tests.support.loop_rig import Rig, registered


@pytest.mark.parametrize("mode", [Mode.ADVISE, Mode.OFF])
async def test_what_is_predicted_for_the_schedule_in_force_is_of_what_the_engines_have(rig: Rig, mode: Mode) -> None:
    """It is compared with what they measure; the alert on wrong predictions goes by it."""
    rig.store.put_policy(Policy(model=MODEL, mode=mode, static_k=0), None, 0.0)
    rig.store.heartbeat(replace(registered("one", 41), static_k=0), 5.0)
    await rig.tick(40)
    throughput = rig.store.log[-1].evidence["throughput"]
    assert throughput["predicted_in_force"] == throughput["predicted_static"]
    assert throughput["predicted_in_force"] == pytest.approx(throughput["measured"], rel=0.1)
    assert throughput["predicted_best"] > 1.2 * throughput["predicted_in_force"]


async def test_engines_to_which_nothing_was_ever_published_are_known_to_run_their_own_static_k(rig: Rig) -> None:
    rig.store.remove_engine("one")
    rig.store.heartbeat(registered("one"), 1e9)
    rig.store.put_policy(Policy(model=MODEL, mode=Mode.ADVISE, static_k=0), None, 0.0)
    await rig.tick(40)
    assert rig.store.published == {}
    throughput = rig.store.log[-1].evidence["throughput"]
    assert throughput["predicted_in_force"] == pytest.approx(throughput["measured"], rel=0.1)


async def test_predicted_and_measured_throughput_have_the_same_weights(rig: Rig) -> None:
    rig.store.put_policy(Policy(model=MODEL, classes={"default": ClassPolicy(weight=2.0)}), None, 0.0)
    await rig.tick(40)
    throughput = rig.store.log[-1].evidence["throughput"]
    assert throughput["predicted_in_force"] == pytest.approx(throughput["measured"], rel=0.1)


async def test_in_a_window_of_the_control_group_the_prediction_is_of_the_static_k(rig: Rig) -> None:
    rig.store.put_policy(Policy(model=MODEL, static_k=0, control_group_ratio=0.3), None, 0.0)
    found = []
    for _ in range(80):
        drawn = rig.store.published[MODEL, POOL].drawn if (MODEL, POOL) in rig.store.published else ()
        await rig.tick()
        throughput = rig.store.log[-1].evidence.get("throughput")
        if drawn and throughput:
            found.append(throughput)
    assert len(found) >= 8
    assert all(item["predicted_in_force"] == item["predicted_static"] for item in found)
