"""The control group in the loop: what keeps or drops what it measured, and its windows."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from specpilot.controller.recording.explanation import explain
from specpilot.policy.canary import Canary, Experiment, Outcome
from specpilot.policy.model_policy import ClassPolicy, Mode, Policy
from tests.simulation.engine import MODEL, POOL, Engine
from tests.support.loop_rig import ENGINES_CHOOSE, Rig, registered, text


@pytest.mark.parametrize("change", [{"static_k": 2}, {"k_max": 5}, {"classes": {"a": ClassPolicy(weight=2.0)}}])
async def test_what_the_control_group_measured_is_dropped_when_other_things_are_compared(
    rig: Rig, change: dict[str, Any]
) -> None:
    def windows() -> int:
        return int(rig.store.log[-1].evidence["control_group"]["windows"])

    policy = Policy(model=MODEL, control_group_ratio=0.4)
    rig.store.put_policy(policy, None, 0.0)
    await rig.tick(60)
    measured = windows()
    assert measured >= 3
    rig.store.put_policy(replace(policy, match=(), probe_ratio=0.01), None, 0.0)
    await rig.tick(2)
    assert windows() >= measured
    rig.store.put_policy(replace(policy, **change), None, 0.0)
    await rig.tick(2)
    assert windows() == 0


@pytest.mark.parametrize("control_group_ratio", [0.4, 0.0])
async def test_a_canary_that_wants_other_things_leaves_what_the_control_group_measured(
    rig: Rig, control_group_ratio: float
) -> None:
    policy = Policy(model=MODEL, control_group_ratio=0.4)
    rig.store.put_policy(policy, None, 0.0)
    await rig.tick(60)
    measured = rig.store.log[-1].evidence["control_group"]["windows"]
    assert measured >= 3
    canary = Canary(replace(policy, k_max=5, static_k=2, control_group_ratio=control_group_ratio))
    experiment = Experiment(1, "id", canary, rig.store.stored[MODEL].version, rig.clock.now())
    rig.store.put_canary(experiment, None, 0.0)
    await rig.tick(60)
    assert any(item.evidence.get("canary") for item in rig.store.log)
    running = rig.store.tried[MODEL]
    in_its_turn = [item for item in rig.store.log if (item.evidence.get("canary") or {}).get("arm") == "canary"]
    assert all(item.evidence["control_group"]["is_paused"] for item in in_its_turn)
    ended = replace(running, version=running.version + 1, outcome=Outcome.ABORTED, ended_at=1.0)
    rig.store.put_canary(ended, None, 0.0)
    await rig.tick(2)
    assert rig.store.log[-1].evidence["control_group"]["windows"] >= measured


@pytest.mark.parametrize("mode", [Mode.ADVISE, Mode.OFF])
async def test_what_the_control_group_found_is_in_every_decision_also_while_it_pauses(rig: Rig, mode: Mode) -> None:
    """A controller that takes over reads from it whether the pool had fallen back."""
    policy = Policy(model=MODEL, control_group_ratio=0.4)
    rig.store.put_policy(policy, None, 0.0)
    await rig.tick(60)
    before = rig.store.log[-1].evidence["control_group"]
    rig.store.put_policy(replace(policy, mode=mode), None, 0.0)
    await rig.tick(5)
    assert rig.store.log[-1].evidence["control_group"] == {**before, "is_paused": True}
    assert (
        "specpilot_controller_control_group_gain_ratio{" not in rig.page()
    )  # it tells nothing of now, and alerts nobody


async def test_a_stale_pool_is_never_moved_to_the_control_groups_static_k(rig: Rig) -> None:
    """Not even in a window that is drawn."""
    policy = Policy(model=MODEL, control_group_ratio=0.0, static_k=0)
    rig.store.put_policy(policy, None, 0.0)
    await rig.tick(30)
    rig.fleet.engines.clear()  # registered, and not to be scraped
    await rig.tick(30)
    for k_max in range(6, 0, -1):
        rig.store.put_policy(replace(policy, control_group_ratio=0.5, k_max=k_max), None, 0.0)
        await rig.tick(4)
        schedule = rig.store.published[MODEL, POOL]
        assert (schedule.guidance.classes["default"].k_max, schedule.drawn) == (k_max, ())
    assert "control_group" not in {item.reason for item in rig.store.log}


async def test_the_control_group_has_single_engines_follow_the_static_k(rig: Rig) -> None:
    rig.fleet.engines["two"] = Engine("two", np.random.default_rng(4))
    rig.store.heartbeat(registered("two"), 5.0)
    rig.store.put_policy(replace(ENGINES_CHOOSE, control_group_ratio=0.3), None, 0.0)
    drawn, reasons, mean_k = set(), {}, {}
    for _ in range(60):
        before = {name: engine.by_source.sum(axis=0) for name, engine in rig.fleet.engines.items()}
        in_force = rig.store.published.get((MODEL, POOL))
        await rig.tick()
        if in_force is not None:
            for name, engine in rig.fleet.engines.items():
                decodes, k = engine.by_source.sum(axis=0) - (before[name] if before[name].any() else 0.0)
                mean_k.setdefault(name in in_force.drawn, []).append(k / decodes)
        schedule = rig.store.published[MODEL, POOL]
        drawn.add(schedule.drawn)
        reasons.setdefault(rig.store.log[-1].reason, set()).add(schedule.drawn)
    assert drawn == {(), ("one",), ("two",), ("one", "two")}
    assert reasons["control_group"] == {("one", "two")}
    assert ("one",) in reasons["adaptive"]
    assert np.mean(mean_k[True][2:]) == pytest.approx(1.0, abs=0.1)
    assert np.mean(mean_k[False][5:]) > 4.0
    found = rig.store.log[-1].evidence["control_group"]
    assert found["windows"] >= 5
    assert found["gain_ratio"]["mean"] > 0
    assert "inter-token latency" in text(explain(rig.store.log[-1]))


async def test_engines_that_choose_fall_back_to_the_static_k_and_the_windows_run_their_law(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specpilot.controller.decision.control_group.FALLEN_BACK_RATIO", 0.4)
    rig.store.put_policy(replace(ENGINES_CHOOSE, control_group_ratio=0.3), None, 0.0)
    await rig.tick(10)
    rig.law._pools[MODEL, POOL].control_group.has_lost = True
    found = set()
    for _ in range(30):
        await rig.tick()
        schedule = rig.store.published[MODEL, POOL]
        assert schedule.is_fallen_back
        guidance = schedule.guidance_of("one")
        found.add((rig.store.log[-1].reason, guidance.override is None))
    assert found == {("fallen_back", False), ("adaptive", True)}
