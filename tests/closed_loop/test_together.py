"""Canaries, freezes, the control group and take-overs at the same time, also with a slow or failing Redis."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from specpilot.controller.decision.context import TickResult
from specpilot.controller.loop import RESUME_TRIES
from specpilot.policy.canary import Canary, Experiment, Lost, Outcome
from specpilot.policy.errors import StoreUnavailableError
from specpilot.policy.freeze import Freeze, Hold
from specpilot.policy.model_policy import Mode, Policy
from specpilot.policy.names import K_LIMIT
from specpilot.policy.records import Decision
from specpilot.policy.schedule import Cause, Override
from tests.simulation.engine import K_MAX, MODEL, POOL
from tests.support.loop_rig import Rig, registered


@pytest.fixture
def rig() -> Rig:
    return Rig.new()


async def in_a_window_of_the_control_group(rig: Rig) -> None:
    """Let the law settle above a static K of 1, until that has its turn."""
    policy = Policy(MODEL, static_k=1, control_group_ratio=0.0)
    rig.store.put_policy(policy, 0, 0.0)
    await rig.tick(40)
    rig.store.put_policy(replace(policy, control_group_ratio=0.3), None, 0.0)
    for _ in range(100):
        await rig.tick()
        if rig.store.log[-1].reason == "control_group":
            break
    assert rig.store.log[-1].reason == "control_group"


@pytest.mark.parametrize("is_taken_over", [False, True])
async def test_a_pool_that_fell_back_keeps_the_static_k_in_the_present_policys_turns_of_a_canary(
    rig: Rig, *, is_taken_over: bool
) -> None:
    policy = Policy(model=MODEL, control_group_ratio=0.01, static_k=2)
    rig.store.put_policy(policy, None, 0.0)
    await rig.tick(20)
    rig.law.resume(MODEL, POOL, rig.store.log[-1].evidence["control_group"]["compared"])
    await rig.tick(2)
    assert rig.store.log[-1].reason == "fallen_back"
    canary = Canary(replace(policy, probe_ratio=0.004), window_s=10.0)
    rig.store.put_canary(Experiment(1, "id", canary, rig.store.stored[MODEL].version, rig.clock.now()), None, 0.0)
    leader = rig
    if is_taken_over:  # by a controller that starts within the canary
        await rig.tick(3)
        rig.leadership.release()
        leader = Rig.new("another", beside=rig)
    begun = len(rig.store.log)
    await leader.tick(60)
    reasons: dict[str, set[str]] = {"present": set(), "canary": set()}
    for item in rig.store.log[begun:]:
        reasons[item.evidence["canary"]["arm"]].add(item.reason)
    assert reasons["present"] - ({"stale"} if is_taken_over else set()) == {"fallen_back"}
    assert "fallen_back" not in reasons["canary"]


async def test_a_tick_that_takes_long_over_many_pools_does_not_hang(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    for index in range(4):
        rig.store.heartbeat(replace(registered(f"other-{index}"), pool=f"pool-{index}"), 5.0)
    await rig.tick(2)
    shown, hung = rig.metrics.show_decision, []

    def slow(model: str, pool: str, result: TickResult) -> None:
        rig.clock.at += 6.0
        hung.append(rig.loop.is_hanging)
        shown(model, pool, result)

    monkeypatch.setattr(rig.metrics, "show_decision", slow)
    rig.leadership.renew()
    await rig.loop.tick()
    assert len(hung) == 5
    assert not any(hung)


async def test_a_promoted_policy_is_the_models_at_once(rig: Rig) -> None:
    """Not one tick more of the policy before, whose bounds the canary's schedule breaks."""
    rig.store.put_policy(Policy(MODEL, static_k=1, k_max=0, control_group_ratio=0.0), 0, 0.0)
    await rig.tick(20)
    canary = Canary(
        Policy(MODEL, static_k=1, control_group_ratio=0.0), window_s=10.0, min_duration_s=60, max_duration_s=400
    )
    rig.store.put_canary(Experiment(1, "id", canary, 1, rig.clock.now()), None, 0.0)
    for _ in range(round(canary.max_duration_s) + 1):
        await rig.tick()
        if not rig.store.tried[MODEL].is_running:
            break
    assert rig.store.tried[MODEL].outcome is Outcome.BETTER
    ended = len(rig.store.log) - 1
    await rig.tick(5)
    bounds = {item.schedule.guidance.classes["default"].k_max for item in rig.store.log[ended:]}
    assert bounds == {K_LIMIT}
    assert rig.k() > K_MAX - 1


async def test_a_take_over_before_any_engine_is_there_finds_who_had_fell_back_when_one_comes(rig: Rig) -> None:
    await rig.tick(20)
    last = rig.store.log[-1]
    found = {**last.evidence["control_group"], "has_lost": True}
    rig.store.log.append(replace(last, evidence={**last.evidence, "control_group": found}))
    rig.store.leader = None
    engines = rig.store.records.copy()
    rig.store.records.clear()
    second = Rig.new("other", beside=rig)
    await second.tick(2)
    rig.store.records.update(engines)
    await second.tick(3)
    assert rig.store.log[-1].reason == "fallen_back"


async def test_a_pool_whose_decisions_cannot_be_read_holds_up_no_other_one(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.store.heartbeat(replace(registered("two"), pool="other"), 5.0)
    await rig.tick(20)
    second = Rig.new("second", beside=rig)
    await second.tick(3)
    rig.store.leader = None
    answers = rig.store.decisions

    def decisions(model: str, pool: str, limit: int, before: float | None = None) -> Sequence[Decision]:
        if pool == "other":
            raise StoreUnavailableError("Redis does not answer: timed out")
        return answers(model, pool, limit, before)

    monkeypatch.setattr(rig.store, "decisions", decisions)
    rig.store.frozen[MODEL] = Freeze(MODEL, Hold.STATIC, 0.0)
    begun = len(rig.store.log)
    await second.tick(3)
    assert {item.pool for item in rig.store.log[begun:]} == {POOL}
    await second.tick(RESUME_TRIES)
    assert {item.pool for item in rig.store.log[begun:]} == {POOL, "other"}


async def test_a_freeze_in_a_window_of_the_control_group_holds_the_laws_k_even_if_it_is_published_late(
    rig: Rig,
) -> None:
    await in_a_window_of_the_control_group(rig)
    rig.store.frozen[MODEL] = Freeze(MODEL, Hold.CURRENT, 0.0)
    rig.store.is_full = True
    await rig.tick()
    rig.store.is_full = False
    await rig.tick(30)
    assert rig.override == Override(None, Cause.FROZEN)
    assert rig.k() > K_MAX - 1


async def test_a_freeze_in_a_canarys_turn_holds_the_present_policys_k_even_if_it_is_published_late(rig: Rig) -> None:
    policy = Policy(MODEL, static_k=1, k_max=2, control_group_ratio=0.0)
    rig.store.put_policy(policy, 0, 0.0)
    await rig.tick(20)
    canary = Canary(replace(policy, k_max=K_MAX), window_s=5.0)
    rig.store.put_canary(Experiment(1, "id", canary, rig.store.stored[MODEL].version, rig.clock.now()), None, 0.0)
    for _ in range(100):
        await rig.tick()
        if rig.k() > 2:
            break
    assert rig.store.log[-1].evidence["canary"]["arm"] == "canary"
    rig.store.frozen[MODEL] = Freeze(MODEL, Hold.CURRENT, 0.0)
    rig.store.is_full = True
    await rig.tick(2)
    rig.store.is_full = False
    await rig.tick(10)
    assert rig.override == Override(None, Cause.FROZEN)
    assert 1 < rig.k() <= 2


async def test_a_freeze_of_the_static_k_that_is_replaced_by_one_of_the_current_k_stays_at_the_static_k(
    rig: Rig,
) -> None:
    await in_a_window_of_the_control_group(rig)
    for hold in (Hold.STATIC, Hold.CURRENT):
        rig.store.frozen[MODEL] = Freeze(MODEL, hold, 0.0)
        await rig.tick(5)
    assert rig.k() == 1


async def test_blocks_in_which_the_model_was_frozen_do_not_count(rig: Rig) -> None:
    policy = Policy(MODEL, mode=Mode.OFF, static_k=4)
    rig.store.put_policy(policy, None, 0.0)
    await rig.tick(5)
    canary = Canary(policy, window_s=20.0, min_duration_s=120, max_duration_s=400)
    rig.store.put_canary(Experiment(1, "id", canary, 1, rig.clock.now()), None, 0.0)
    for second in range(402):
        if second % 20 == 5:
            rig.store.frozen[MODEL] = Freeze(MODEL, Hold.CURRENT, 0.0)
        if second % 20 == 15:
            del rig.store.frozen[MODEL]
        await rig.tick()
    ended = rig.store.tried[MODEL]
    assert (ended.outcome, len(ended.blocks), ended.lost) == (Outcome.INCONCLUSIVE, 0, {Lost.INTERRUPTED: 10})
