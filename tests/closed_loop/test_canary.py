"""Canaries through the whole control loop: engines, law, turns, measuring, judgement, store; and what may go wrong."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from specpilot.bench.simulation.engine import MODEL, POOL, Engine
from specpilot.controller.cli.replay import replay
from specpilot.controller.law.context import PoolContext, TickResult
from specpilot.controller.law.control_law import ControlLaw
from specpilot.controller.recording.explanation import explain, text
from specpilot.controller.recording.record import from_line, to_line
from specpilot.policy.canary import Arm, Canary, Experiment, Lost, Outcome
from specpilot.policy.errors import StoreUnavailableError
from specpilot.policy.freeze import Freeze, Hold
from specpilot.policy.model_policy import ClassPolicy, Mode, Policy
from specpilot.policy.names import K_LIMIT
from specpilot.policy.records import Decision, Lease
from tests.support.loop_rig import Rig, registered

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


def k_published(rig: Rig) -> set[int]:
    """K of an engine by the schedule: both policies are a static K, which guidance pins during a canary."""
    schedule = rig.store.published[MODEL, POOL]
    guidance = schedule.guidance_of("one")
    if guidance is not None:
        return {k for asked in guidance.classes.values() for k in (asked.k_min, asked.k_max)}
    return {item.k for ranges in schedule.classes.values() for item in ranges}


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
    assert k_published(rig) == {4}
    assert sum(item.reason == "canary_ended" for item in rig.store.log) == 1


async def test_a_worse_policy_is_rolled_back_soon() -> None:
    rig = await rig_with(DEEP, SHALLOW)
    found = await until_it_ends(rig)
    assert found.outcome is Outcome.WORSE
    assert len(found.blocks) <= 4
    assert rig.store.stored[MODEL].policy == DEEP
    assert told(rig).evidence["canary"]["outcome"] == "worse"
    await rig.tick()
    assert k_published(rig) == {4}


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
        assert k_published(rig) == ({4} if arm == "canary" else {1})
    assert arms == {"present": 60, "canary": 20}


async def test_engines_choose_by_the_guidance_of_the_window() -> None:
    rig = Rig.new()
    rig.store.put_policy(Policy(MODEL), None, 0.0)
    await rig.tick(40)
    start(rig, Canary(Policy(MODEL, k_max=1), tolerance_ratio=0.5, **TIMES))
    most: dict[str, set[int]] = {"present": set(), "canary": set()}
    for _ in range(100):
        await rig.tick()
        arm, guidance = rig.store.log[-1].evidence["canary"]["arm"], rig.store.published[MODEL, POOL].guidance_of("one")
        assert guidance is not None
        assert guidance.classes["default"].k_max == (1 if arm == "canary" else K_LIMIT)
        most[arm].add(rig.k())
    assert most == {"present": {7}, "canary": {1}}


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


async def test_without_traffic_it_ends_inconclusive_and_says_so() -> None:
    rig = await rig_with(SHALLOW, DEEP, max_duration_s=120.0)
    rig.fleet.sources = []
    found = await until_it_ends(rig)
    assert (found.outcome, found.lost) == (Outcome.NO_TRAFFIC, {Lost.NO_TRAFFIC: 6})
    assert rig.store.stored[MODEL].policy == SHALLOW


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


async def test_a_stand_by_measures_nothing_and_follows_the_turns() -> None:
    leader = await rig_with(SHALLOW, DEEP)
    other = Rig.new("other", beside=leader)
    for _ in range(50):
        await leader.tick()
        leader.clock.at -= 1.0
        await other.tick()
    assert len(experiment(leader).blocks) == 2
    assert experiment(leader).version == 3
    arms = [
        [item.context.arm for item in replay(from_line(to_line(tick)) for tick in rig.recorded[-40:])]
        for rig in (leader, other)
    ]
    assert arms[0] == arms[1]
    assert {Arm.PRESENT, Arm.CANARY} <= set(arms[0])


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


async def test_redis_gone_costs_the_blocks_it_was_gone_in() -> None:
    rig = await rig_with(SHALLOW, DEEP)
    await rig.tick(45)
    rig.store.is_down = True
    in_force = k_published(rig)
    await rig.tick(30)
    assert k_published(rig) == in_force
    rig.store.is_down = False
    found = await until_it_ends(rig)
    assert (found.outcome, len(found.blocks)) == (Outcome.BETTER, 6)
    assert found.lost == {Lost.INTERRUPTED: 2}


async def test_a_replay_knows_that_the_turns_stood_still_and_who_led() -> None:
    rig = await rig_with(DEEP, replace(DEEP, mode=Mode.ACT))
    live, law = [], rig.loop._law

    def watched(context: PoolContext, now: float, at: float) -> TickResult:
        result = ControlLaw.decide(law, context, now, at)
        live.append((context.arm, result.reason))
        return result

    law.decide = watched  # type: ignore[method-assign]
    await rig.tick(25)
    rig.store.is_down = True
    await rig.tick(15)
    rig.store.is_down, rig.store.leader = False, None
    await rig.tick(40)
    assert {Arm.PRESENT, Arm.CANARY} <= {arm for arm, _ in live}
    assert len({tick.fence for tick in rig.recorded} - {None}) == 2
    again = [(item.context.arm, item.result.reason) for item in replay(from_line(to_line(one)) for one in rig.recorded)]
    assert again[-len(live) :] == live


async def test_a_short_silence_of_redis_costs_nothing() -> None:
    rig = await rig_with(SHALLOW, DEEP)
    await rig.tick(45)
    rig.store.is_down = True
    await rig.tick(2)
    rig.store.is_down = False
    found = await until_it_ends(rig)
    assert (found.outcome, found.lost) == (Outcome.BETTER, {})


async def test_a_deposed_leader_writes_no_block() -> None:
    rig = await rig_with(SHALLOW, DEEP)
    await rig.tick(15)
    rig.store.fence += 1
    before = experiment(rig)
    rig.store.leader = Lease("me", rig.store.fence - 1)  # it still believes
    await rig.tick(10)
    assert experiment(rig) == before


async def test_a_new_policy_of_the_operator_ends_it() -> None:
    rig = await rig_with(SHALLOW, DEEP)
    await rig.tick(30)
    rig.store.put_policy(replace(SHALLOW, static_k=2), None, 0.0)
    found = await until_it_ends(rig)
    assert found.outcome is Outcome.POLICY_CHANGED
    assert rig.store.stored[MODEL].policy.static_k == 2
    assert told(rig).evidence["canary"]["outcome"] == "policy_changed"


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


async def test_the_canary_of_a_pool_that_has_fallen_back_counts_while_an_slo_keeps_it_from_the_static_k() -> None:
    rig = Rig.new()
    present = Policy(MODEL, static_k=0, control_group_ratio=0.1, classes={"default": ClassPolicy(itl_slo_ms=2.5)})
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
        await rig.tick()
        found = rig.store.log[-1]
        assert (found.mode, found.reason, found.is_estimate, set(found.k.values())) == (Mode.OFF, "off", False, {k})
        throughput = found.evidence["throughput"]
        assert throughput["predicted_static"] == pytest.approx(throughput["predicted_in_force"])
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


async def test_windows_in_which_no_engine_can_choose_yet_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such engines run the rows, which are the present policy's static K in both kinds of windows."""
    monkeypatch.setattr("specpilot.controller.law.tick.representative", lambda _: None)
    rig = await rig_with(SHALLOW, DEEP, max_duration_s=120.0)
    found = await until_it_ends(rig)
    assert (found.blocks, found.lost) == ((), {Lost.INTERRUPTED: 6})


@pytest.mark.parametrize(("outcome", "k"), [(Outcome.PROMOTED, {4}), (Outcome.ABORTED, {1})])
async def test_an_operator_ends_it_by_hand(outcome: Outcome, k: set[int]) -> None:
    rig = await rig_with(SHALLOW, DEEP)
    await rig.tick(30)
    found = experiment(rig)
    rig.store.put_canary(replace(found, version=found.version + 1, outcome=outcome, ended_at=1.0), None, 0.0)
    await rig.tick(2)
    assert k_published(rig) == k
    assert told(rig).evidence["canary"]["outcome"] == outcome.value
