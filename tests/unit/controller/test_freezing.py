"""A freeze holds K, current or static, until it is lifted or its time is over; the law learns on."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from specpilot.controller.freezing import held
from specpilot.controller.law.control_group import ControlGroup
from specpilot.policy.canary import Canary, Experiment
from specpilot.policy.freeze import EVERYTHING, Freeze, Hold
from specpilot.policy.model_policy import Mode, Policy
from specpilot.policy.names import K_LIMIT
from specpilot.policy.records import Decision
from specpilot.policy.schedule import Schedule, k_at
from tests.simulation.engine import MODEL, POOL
from tests.support.loop_rig import Rig, k_of, registered


def settled() -> Rig:
    rig = Rig.new()
    rig.store.put_policy(Policy(MODEL, static_k=1), 0, 0.0)
    asyncio.run(rig.tick(15))
    return rig


def test_k_stays_while_frozen_and_moves_again_when_lifted() -> None:
    rig = settled()
    before, chosen = rig.store.published[MODEL, POOL], rig.store.log[-1].schedule.classes
    assert k_of(chosen) == 7
    rig.store.frozen[MODEL] = Freeze(MODEL, Hold.CURRENT, 0.0, author="ada")
    rig.store.put_policy(Policy(MODEL, static_k=1, k_max=2), None, 0.0)
    asyncio.run(rig.tick(10))
    now = rig.store.published[MODEL, POOL]
    assert (now.guidance, now.classes, now.probe_ratio) == (None, chosen, before.probe_ratio)
    assert now.version > before.version  # renewed, so that it does not lapse
    newest = rig.store.decisions(MODEL, POOL, 1)[0]
    decodes = round(newest.evidence["decodes"])
    assert (newest.reason, newest.k) == ("frozen", {name: k_at(ranges, decodes) for name, ranges in chosen.items()})
    assert newest.evidence["freeze"]["author"] == "ada"
    assert newest.mode is Mode.ACT
    throughput = newest.evidence["throughput"]  # what is predicted of the schedule in force is of the one that is held
    assert throughput["predicted_in_force"] == pytest.approx(throughput["measured"], rel=0.1)
    assert throughput["predicted_in_force"] > 1.2 * throughput["predicted_static"]
    assert 'reason="frozen"} 10.0' in rig.page()
    del rig.store.frozen[MODEL]
    asyncio.run(rig.tick(2))
    assert rig.k() == 2


def test_a_freeze_on_the_static_k_holds_in_the_next_tick_and_until_its_time() -> None:
    rig = settled()
    rig.store.frozen[EVERYTHING] = Freeze(EVERYTHING, Hold.STATIC, 0.0, until=rig.clock.now() + 5.5)
    asyncio.run(rig.tick())
    frozen = rig.store.published[MODEL, POOL]
    assert ({item.k for ranges in frozen.classes.values() for item in ranges}, frozen.probe_ratio) == ({1}, 0.0)
    asyncio.run(rig.tick(5))
    assert rig.store.decisions(MODEL, POOL, 1)[0].reason == "frozen"
    asyncio.run(rig.tick(30))
    assert rig.store.decisions(MODEL, POOL, 1)[0].reason != "frozen"
    assert rig.k() == 7


def test_the_law_goes_on_as_if_nothing_was_published_after_a_freeze() -> None:
    """A comparison of what was never in force with what was measured would pause the law for nothing."""
    rig = settled()
    rig.store.frozen[MODEL] = Freeze(MODEL, Hold.STATIC, 0.0)
    asyncio.run(rig.tick(20))
    del rig.store.frozen[MODEL]
    asyncio.run(rig.tick(12))
    reasons = [item.reason for item in rig.store.decisions(MODEL, POOL, 12)]
    assert "static_better" not in reasons
    assert rig.k() == 7


def tick_until(rig: Rig, is_reached: Callable[[Decision], bool]) -> None:
    for _ in range(60):
        asyncio.run(rig.tick())
        if is_reached(rig.store.log[-1]):
            return
    raise AssertionError("not reached within 60 ticks")


def held_under_a_freeze(rig: Rig) -> Schedule:
    """Freeze the model; return what is held from the next tick on."""
    rig.store.frozen[MODEL] = Freeze(MODEL, Hold.CURRENT, 0.0)
    asyncio.run(rig.tick())
    found = rig.store.published[MODEL, POOL]
    asyncio.run(rig.tick(8))
    assert rig.store.published[MODEL, POOL].classes == found.classes
    return found


def test_a_window_of_the_control_group_is_not_what_is_held() -> None:
    rig = settled()
    rig.store.put_policy(Policy(MODEL, static_k=1, control_group_ratio=0.3), None, 0.0)
    tick_until(rig, lambda decision: decision.reason == "control_group")
    chosen = rig.store.log[-1].schedule.classes
    assert rig.k() == 1
    found = held_under_a_freeze(rig)
    assert found.probe_ratio == 0.005
    assert k_of(found.classes) == k_of(chosen) == 7


def test_a_pool_that_fell_back_holds_the_static_k_though_the_law_had_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ControlGroup, "_test", lambda _: None)
    monkeypatch.setattr("specpilot.controller.law.control_group.FALLEN_BACK_RATIO", 0.5)
    rig = settled()
    rig.loop.view().law._pools[MODEL, POOL].control_group.has_lost = True
    tick_until(rig, lambda decision: decision.reason == "static_better")
    tick_until(rig, lambda decision: decision.reason == "adaptive")
    assert rig.k() == 7
    found = held_under_a_freeze(rig)
    assert ({item.k for ranges in found.classes.values() for item in ranges}, found.probe_ratio) == ({1}, 0.005)


def test_a_canarys_turn_is_not_what_is_held() -> None:
    rig = settled()
    canary = Canary(Policy(MODEL, static_k=1, k_max=2), window_s=5.0)
    rig.store.put_canary(Experiment(1, "id", canary, rig.store.stored[MODEL].version, rig.clock.now()), None, 0.0)
    tick_until(rig, lambda decision: decision.evidence["canary"]["arm"] == "present")
    tick_until(rig, lambda decision: decision.evidence["canary"]["arm"] == "canary")
    asyncio.run(rig.tick())
    assert rig.k() == 2
    assert k_of(held_under_a_freeze(rig).classes) == 7


def test_a_new_leader_holds_what_is_in_force() -> None:
    rig = settled()
    rig.store.put_policy(Policy(MODEL, static_k=1, control_group_ratio=0.3), None, 0.0)
    tick_until(rig, lambda decision: decision.reason == "control_group")
    rig.leadership.release()
    another = Rig.new("another", beside=rig)
    asyncio.run(another.tick(3))  # it has to see traffic to estimate what the engines choose
    assert k_of(held_under_a_freeze(another).classes) == 7


def test_a_leader_without_an_estimate_lets_engines_go_on_choosing_until_it_has_one() -> None:
    rig = settled()
    rig.leadership.release()
    rig.store.frozen[MODEL] = Freeze(MODEL, Hold.CURRENT, 0.0)
    another = Rig.new("another", beside=rig)
    asyncio.run(another.tick())
    assert rig.store.published[MODEL, POOL].guidance is not None
    asyncio.run(another.tick(3))
    found = rig.store.published[MODEL, POOL]
    assert found.guidance is None
    assert k_of(found.classes) > 4  # its first estimate, of few drafts


def test_a_leader_that_saw_no_traffic_yet_does_not_freeze_the_static_k() -> None:
    rig = settled()
    rig.leadership.release()
    sources, rig.fleet.sources = rig.fleet.sources, []
    another = Rig.new("another", beside=rig)
    asyncio.run(another.tick(5))
    assert rig.store.log[-1].reason == "idle"
    rig.store.frozen[MODEL] = Freeze(MODEL, Hold.CURRENT, 0.0)
    asyncio.run(another.tick(5))
    assert rig.store.published[MODEL, POOL].guidance is not None
    rig.fleet.sources = sources
    asyncio.run(another.tick(5))
    found = rig.store.published[MODEL, POOL]
    assert found.guidance is None
    assert k_of(found.classes) > 4


def test_a_freeze_in_a_canarys_window_holds_what_the_present_policy_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool that had fallen back, and a canary with other probes: the schedule in force is the canary's."""
    monkeypatch.setattr(ControlGroup, "_test", lambda _: None)
    rig = settled()
    rig.loop.view().law._pools[MODEL, POOL].control_group.has_lost = True
    asyncio.run(rig.tick(3))
    canary = Canary(Policy(MODEL, static_k=1, probe_ratio=0.3), window_s=5.0)
    rig.store.put_canary(Experiment(1, "id", canary, rig.store.stored[MODEL].version, rig.clock.now()), None, 0.0)
    tick_until(rig, lambda decision: decision.evidence["canary"]["arm"] == "canary")
    found = held_under_a_freeze(rig)
    assert (found.guidance, k_of(found.classes), found.probe_ratio) == (None, 1, 0.005)


def test_a_freeze_in_a_canarys_window_that_nothing_runs_in_has_the_present_policys_guidance() -> None:
    rig = settled()
    canary = Canary(Policy(MODEL, static_k=1, k_max=4, probe_ratio=0.3), window_s=5.0)
    rig.store.put_canary(Experiment(1, "id", canary, rig.store.stored[MODEL].version, rig.clock.now()), None, 0.0)
    rig.fleet.sources = []
    tick_until(rig, lambda decision: decision.reason == "idle" and decision.evidence["canary"]["arm"] == "canary")
    rig.store.frozen[MODEL] = Freeze(MODEL, Hold.CURRENT, 0.0)
    asyncio.run(rig.tick(3))
    found = rig.store.published[MODEL, POOL]
    assert found.guidance is not None
    assert (found.guidance.classes["default"].k_max, found.probe_ratio) == (K_LIMIT, 0.005)


@pytest.mark.parametrize("mode", [Mode.OFF, Mode.ADVISE])
def test_a_freeze_in_the_canary_of_a_policy_that_does_not_choose_holds_the_static_k(mode: Mode) -> None:
    """During the canary both policies are guidance, and the present one's pins its static K."""
    rig = settled()
    rig.store.put_policy(Policy(MODEL, mode=mode, static_k=2), None, 0.0)
    asyncio.run(rig.tick(3))
    canary = Canary(Policy(MODEL), window_s=5.0)
    rig.store.put_canary(Experiment(1, "id", canary, rig.store.stored[MODEL].version, rig.clock.now()), None, 0.0)
    for arm in ("canary", "present"):
        tick_until(rig, lambda decision: decision.evidence["canary"]["arm"] == arm)  # noqa: B023 - called at once
        rig.store.frozen[MODEL] = Freeze(MODEL, Hold.CURRENT, 0.0)
        asyncio.run(rig.tick(3))
        found = rig.store.published[MODEL, POOL]
        assert (found.guidance, found.drawn_guidance, k_of(found.classes)) == (None, None, 2)
        del rig.store.frozen[MODEL]


@pytest.mark.parametrize(("mode", "ks", "in_force"), [(Mode.ADVISE, [], 3), (Mode.OFF, [1], 1)])
def test_what_a_freeze_publishes_to_engines_that_run_on_their_own(mode: Mode, ks: list[int], in_force: int) -> None:
    rig = Rig.new()
    rig.store.heartbeat(registered("one"), 1e9)
    rig.store.put_policy(Policy(MODEL, mode=mode, static_k=1), None, 0.0)
    rig.store.frozen[MODEL] = Freeze(MODEL, Hold.CURRENT, 0.0)
    asyncio.run(rig.tick(3))
    assert [k_of(schedule.classes) for schedule in rig.store.published.values()] == ks
    assert (rig.store.log[-1].reason, rig.store.log[-1].k) == ("frozen", {"default": in_force})
    rig.store.frozen[MODEL] = Freeze(MODEL, Hold.STATIC, 0.0)
    asyncio.run(rig.tick())
    assert k_of(rig.store.published[MODEL, POOL].classes) == 1


def test_with_nothing_in_force_the_static_k_is_held_and_never_more_than_the_engines_can() -> None:
    rig = settled()
    [context] = rig.loop.view().pools
    result = rig.loop.view().law.decide(context, rig.clock.monotonic(), rig.clock.now())
    result = replace(result, baseline=(result.proposed, 0.005))
    freeze = Freeze(MODEL, Hold.CURRENT, 0.0)
    assert held(context, result, None) is result
    blank = type(context)(MODEL, POOL, context.policy, 7, 3, 8, None)
    assert held(blank, replace(result, baseline=None), freeze).publish == {"default": ((1, 8, 1),)}
    small = type(context)(MODEL, POOL, context.policy, 2, 1, 64, context.in_force)
    publish = held(small, result, freeze).publish
    assert publish is not None
    assert {item.k for ranges in publish.values() for item in ranges} <= {0, 1, 2}
