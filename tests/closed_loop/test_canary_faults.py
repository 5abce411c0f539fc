"""Canaries through the whole control loop while controllers, engines, Redis or the law fail."""

from dataclasses import replace

import numpy as np
import pytest

from specpilot.controller.decision.context import TickResult
from specpilot.policy.canary import Experiment, Lost, Outcome
from specpilot.policy.errors import StoreUnavailableError
from specpilot.policy.records import Lease
from tests.simulation.engine import MODEL, POOL, Engine
from tests.support.canary_rig import DEEP, SHALLOW, experiment, k_published, rig_with, told, until_it_ends
from tests.support.loop_rig import Rig, registered


async def test_a_block_that_could_not_be_written_is_written_later() -> None:
    rig = await rig_with(SHALLOW, DEEP)
    await rig.tick(18)
    put, failures = rig.store.put_canary, 2

    def put_canary(item: Experiment, lease: Lease | None, now: float) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise StoreUnavailableError("Redis does not answer: this write is lost")
        put(item, lease, now)

    rig.store.put_canary = put_canary  # type: ignore[method-assign]
    await rig.tick(10)
    assert failures == 0
    assert [block.index for block in experiment(rig).blocks] == [0]
    found = await until_it_ends(rig)
    assert [block.index for block in found.blocks] == [0, 1, 2, 3, 4, 5]
    assert not found.lost


async def test_a_successor_goes_on_and_loses_one_block() -> None:
    first = await rig_with(SHALLOW, DEEP)
    await first.tick(70)
    kept = experiment(first).blocks
    assert len(kept) == 3
    first.store.leader = None  # the leader died
    second = Rig.new("other", beside=first)
    found = await until_it_ends(second)
    assert found.outcome is Outcome.BETTER
    assert found.blocks[:3] == kept
    assert found.lost == {Lost.INTERRUPTED: 1}
    assert told(second).evidence["canary"]["outcome"] == "better"


async def test_a_stand_by_that_takes_over_loses_no_block() -> None:
    leader = await rig_with(SHALLOW, DEEP)
    other = Rig.new("other", beside=leader)
    for number in range(400):
        if number == 47:  # within a block
            leader.store.leader = None  # the leader died
        if number < 47:
            await leader.tick()
            leader.clock.at -= 1.0
        await other.tick()
        if not experiment(other).is_running:
            break
    assert (experiment(other).outcome, experiment(other).lost) == (Outcome.BETTER, {})
    assert [block.index for block in experiment(other).blocks] == list(range(6))


async def test_a_stand_by_writes_nothing_and_follows_the_windows() -> None:
    leader = await rig_with(SHALLOW, DEEP)
    other = Rig.new("other", beside=leader)
    for _ in range(50):
        await leader.tick()
        leader.clock.at -= 1.0
        await other.tick()
    assert len(experiment(leader).blocks) == 2
    assert experiment(leader).version == 3


async def test_an_engine_that_leaves_does_not_end_it() -> None:
    rig = await rig_with(SHALLOW, DEEP)
    rig.store.heartbeat(registered("two"), 5.0)
    rig.fleet.engines["two"] = Engine("two", np.random.default_rng(4))
    await rig.tick(50)
    rig.store.remove_engine("one")
    found = await until_it_ends(rig)
    assert (found.outcome, len(found.blocks)) == (Outcome.BETTER, 6)


async def test_when_all_engines_leave_it_ends_in_time() -> None:
    rig = await rig_with(SHALLOW, DEEP)
    await rig.tick(30)
    rig.store.remove_engine("one")
    found = await until_it_ends(rig)
    assert found.outcome is Outcome.INCONCLUSIVE
    assert (len(found.blocks), found.lost) == (1, {Lost.INTERRUPTED: 1, Lost.NO_TRAFFIC: 18})
    assert rig.store.stored[MODEL].policy == SHALLOW


@pytest.mark.parametrize(("gone_s", "lost"), [(2, {}), (30, {Lost.INTERRUPTED: 2})])
async def test_redis_gone_costs_the_blocks_it_was_gone_in_and_a_short_silence_none(
    gone_s: int, lost: dict[Lost, int]
) -> None:
    rig = await rig_with(SHALLOW, DEEP)
    await rig.tick(45)
    rig.store.is_down = True
    in_force = k_published(rig)
    await rig.tick(gone_s)
    assert k_published(rig) == in_force
    rig.store.is_down = False
    found = await until_it_ends(rig)
    assert (found.outcome, len(found.blocks), found.lost) == (Outcome.BETTER, 6, lost)


async def test_a_deposed_leader_writes_no_block() -> None:
    rig = await rig_with(SHALLOW, DEEP)
    await rig.tick(15)
    rig.store.fence += 1
    before = experiment(rig)
    rig.store.leader = Lease("me", rig.store.fence - 1)  # it still believes
    await rig.tick(10)
    assert experiment(rig) == before


async def test_windows_that_engines_end_by_themselves_are_not_the_canarys() -> None:
    """Redis is full from a window of the canary on, so its schedule stays in force and is not renewed."""
    rig, full_from = await rig_with(SHALLOW, DEEP, share_ratio=0.1, max_duration_s=800.0), None
    for number in range(330):
        if full_from is None and number > 100 and rig.store.published[MODEL, POOL].drawn:
            full_from = number
        rig.store.is_full = full_from is not None and number < full_from + 30
        await rig.tick()
    gains = [block.pools[POOL].throughput for block in experiment(rig).blocks]
    assert len(gains) >= 2
    assert min(gains) > 0.8 * max(gains) > 0


async def test_a_law_that_fails_is_an_interruption_and_a_pool_that_cannot_speculate_is_none() -> None:
    def fails(*_: object) -> TickResult:
        raise ValueError("a fault of the law")

    rig = await rig_with(SHALLOW, DEEP, max_duration_s=120.0)
    rig.loop._law.decide = fails  # type: ignore[method-assign]
    found = await until_it_ends(rig)
    assert (found.outcome, found.lost) == (Outcome.INCONCLUSIVE, {Lost.INTERRUPTED: 6})
    rig = await rig_with(SHALLOW, DEEP, max_duration_s=120.0)
    rig.store.heartbeat(replace(registered("one"), k_max=0, static_k=0), 5.0)
    found = await until_it_ends(rig)
    assert (found.outcome, found.lost) == (Outcome.NO_TRAFFIC, {Lost.NO_TRAFFIC: 6})


async def test_an_engine_whose_metrics_cannot_be_read_follows_the_canary_too() -> None:
    rig = await rig_with(SHALLOW, DEEP)
    rig.store.heartbeat(registered("two"), 5.0)
    while not rig.store.published[MODEL, POOL].drawn:
        await rig.tick()
    assert rig.store.published[MODEL, POOL].drawn == ("one", "two")
