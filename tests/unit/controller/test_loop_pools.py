"""Pools of the loop: engines that join, a policy that cannot be read, and pools that end."""

from dataclasses import replace

from specpilot.controller.pools import FORGET_S
from specpilot.policy.errors import InvalidDocumentError
from specpilot.policy.model_policy import Mode, Policy
from specpilot.policy.schedule import Cause, Override
from tests.simulation.engine import MODEL, POOL
from tests.support.loop_rig import Rig, registered


async def test_an_engine_that_drafts_less_bounds_the_static_k_of_its_pool(rig: Rig) -> None:
    rig.store.put_policy(Policy(MODEL, mode=Mode.OFF, static_k=5), None, 0.0)
    await rig.tick(2)
    assert rig.override == Override(5, Cause.OFF)
    rig.store.heartbeat(replace(registered("two", 7), k_max=2, static_k=2), 60.0)
    await rig.tick()
    assert rig.override == Override(2, Cause.OFF)
    assert rig.metrics.registry.get_sample_value("specpilot_controller_tick_errors_total") == 0


async def test_what_is_told_of_a_pool_goes_with_it(rig: Rig) -> None:
    await rig.tick(12)
    assert f'pool="{POOL}"' in rig.page()
    assert "specpilot_controller_survival_ratio{" in rig.page()
    rig.store.remove_engine("one")
    await rig.tick()
    gauges = [line for line in rig.page().splitlines() if f'pool="{POOL}"' in line and "decisions" not in line]
    assert gauges == []


async def test_a_pool_that_cannot_speculate_gets_no_schedule(rig: Rig) -> None:
    rig.store.heartbeat(replace(registered("one", 7), k_max=0, static_k=0), 60.0)
    await rig.tick(3)
    assert (rig.store.published, rig.store.log[-1].reason) == ({}, "no_drafter")


async def test_a_policy_that_cannot_be_read_holds_its_own_model_only(rig: Rig) -> None:
    rig.store.heartbeat(replace(registered("two", 7), model="another"), 60.0)
    await rig.tick(3)
    held = rig.store.published["another", POOL].version
    rig.store.unreadable["another"] = InvalidDocumentError("Policy", ())
    before = rig.store.published[MODEL, POOL].version
    await rig.tick(5)
    assert rig.store.published["another", POOL].version == held
    assert rig.store.published[MODEL, POOL].version > before
    rig.store.unreadable.clear()
    await rig.tick(3)
    assert rig.store.published["another", POOL].version > held


async def test_a_pool_that_is_gone_for_long_is_forgotten(rig: Rig) -> None:
    await rig.tick(5)
    rig.store.remove_engine("one")
    await rig.tick(2)
    assert (MODEL, POOL) in rig.store.published
    rig.clock.at += FORGET_S + 1
    rig.fleet.ran_until = rig.clock.at
    await rig.tick(2)
    assert rig.store.published == {}
    assert rig.loop._law._pools == {}
    assert f'pool="{POOL}"' not in rig.page()
