"""A freeze in the loop: what is published while it holds, and what follows it."""

from dataclasses import replace

import pytest

from specpilot.policy.errors import InvalidDocumentError
from specpilot.policy.freeze import EVERYTHING, Freeze, Hold
from specpilot.policy.model_policy import Mode, Policy
from specpilot.policy.schedule import Cause, Override
from tests.simulation.engine import MODEL, POOL
from tests.simulation.traffic import Source
from tests.support.loop_rig import Rig


@pytest.mark.parametrize("name", [MODEL, EVERYTHING])
async def test_a_freeze_keeps_k_of_each_group_on_the_engines_though_the_traffic_turns(rig: Rig, name: str) -> None:
    rig.fleet.sources = [Source("json", 4), Source("code_hot", 4)]
    await rig.tick(20)
    before, guidance = rig.k(), rig.store.published[MODEL, POOL].guidance
    assert 1 < before < 6  # predictable requests have a large K, the others none
    rig.store.frozen[name] = Freeze(name, Hold.CURRENT, 0.0)
    await rig.tick(10)
    assert rig.store.published[MODEL, POOL].guidance == replace(guidance, override=Override(None, Cause.FROZEN))
    assert (rig.store.log[-1].reason, rig.k()) == ("frozen", pytest.approx(before, abs=1.0))
    rig.fleet.engines["one"].static_k = 3
    rig.fleet.engines["one"].restart(0.0)
    await rig.tick(5)
    assert rig.k() == 3.0  # nothing to keep
    rig.store.frozen.clear()
    await rig.tick(5)
    assert (rig.override, rig.store.log[-1].reason) == (None, "adaptive")
    assert rig.k() != 3.0


async def test_a_freeze_of_the_static_k_and_of_a_fixed_one(rig: Rig) -> None:
    rig.store.put_policy(Policy(MODEL, static_k=2, k_max=1), None, 0.0)
    rig.store.frozen[MODEL] = Freeze(MODEL, Hold.STATIC, 0.0)
    await rig.tick(5)
    assert (rig.override, rig.k()) == (Override(2, Cause.FROZEN), 2.0)  # also beyond the policy's bounds
    rig.store.frozen[MODEL] = Freeze(MODEL, Hold.CURRENT, 0.0)
    await rig.tick(5)
    assert (rig.override, rig.k()) == (Override(None, Cause.FROZEN), 2.0)
    rig.store.put_policy(Policy(MODEL, mode=Mode.OFF, static_k=6), None, 0.0)
    await rig.tick(5)
    assert rig.k() == 2.0


async def test_engines_know_the_end_of_a_freeze_where_the_law_follows_it(rig: Rig) -> None:
    until = rig.clock.now() + 1000.0
    rig.store.frozen[MODEL] = Freeze(MODEL, Hold.CURRENT, 0.0, until)
    await rig.tick(2)
    assert rig.override == Override(None, Cause.FROZEN, until)
    rig.store.put_policy(Policy(MODEL, mode=Mode.OFF, static_k=6), None, 0.0)
    await rig.tick(2)
    assert rig.override == Override(None, Cause.FROZEN)


async def test_a_freeze_stops_the_control_group(rig: Rig) -> None:
    rig.store.put_policy(Policy(MODEL, control_group_ratio=0.4), None, 0.0)
    await rig.tick(40)
    assert rig.store.log[-1].evidence["control_group"]["windows"] >= 2
    rig.store.frozen[MODEL] = Freeze(MODEL, Hold.CURRENT, 0.0)
    await rig.tick(2)
    before = rig.store.log[-1].evidence["control_group"]
    await rig.tick(30)
    assert rig.store.published[MODEL, POOL].drawn == ()
    assert rig.store.log[-1].evidence["control_group"] == before
    assert before["is_paused"]


async def test_a_model_with_a_policy_that_cannot_be_read_is_frozen_with_its_guidance(rig: Rig) -> None:
    rig.store.put_policy(Policy(MODEL, k_max=4), None, 0.0)
    await rig.tick(3)
    guidance = rig.store.published[MODEL, POOL].guidance
    rig.store.stored.clear()
    rig.store.unreadable[MODEL] = InvalidDocumentError("Policy", ())
    rig.store.frozen[MODEL] = Freeze(MODEL, Hold.CURRENT, 0.0)
    await rig.tick(3)
    assert rig.store.published[MODEL, POOL].guidance == replace(guidance, override=Override(None, Cause.FROZEN))
