import asyncio
import logging
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from specpilot.bench.simulation.engine import MODEL, POOL, Engine
from specpilot.controller import lease
from specpilot.controller.app import create_app
from specpilot.controller.law.context import PoolContext, TickResult
from specpilot.controller.law.control_law import ControlLaw
from specpilot.controller.lease import TTL_S
from specpilot.controller.loop import HANG_S, ControlLoop
from specpilot.controller.pools import FORGET_S
from specpilot.controller.recording.explanation import explain, text
from specpilot.controller.settings import ControllerSettings
from specpilot.policy.canary import Canary, Experiment, Outcome
from specpilot.policy.errors import InvalidDocumentError, StoreUnavailableError
from specpilot.policy.freeze import Freeze, Hold
from specpilot.policy.model_policy import ClassPolicy, Mode, Policy
from specpilot.policy.records import Lease
from specpilot.policy.schedule import ClassGuidance, Guidance, Objective
from specpilot.policy.store import StoreMemory
from tests.support.controller_store import MemoryStore
from tests.support.loop_rig import Rig, k_of, registered


@pytest.fixture
def rig() -> Rig:
    return Rig.new()


async def test_the_first_schedule_is_newer_than_what_engines_report(rig: Rig) -> None:
    await rig.tick()
    assert rig.store.published[MODEL, POOL].version == 42
    assert rig.store.log[-1].version == 42
    assert rig.store.log[-1].published


async def test_every_busy_tick_is_recorded_and_a_quiet_one_now_and_then(rig: Rig) -> None:
    await rig.tick(10)
    assert len(rig.store.log) >= 9
    rig.fleet.sources = []
    await rig.tick(5)
    count = len(rig.store.log)
    await rig.tick(20)
    assert rig.store.log[-1].reason == "idle"
    assert len(rig.store.log) - count <= 3
    assert len(rig.recorded) == 35


async def test_an_unchanged_schedule_is_published_again_every_five_seconds(rig: Rig) -> None:
    rig.store.stored = {}
    rig.store.put_policy(Policy(model=MODEL, mode=Mode.OFF), None, 0.0)
    versions = []
    for _ in range(20):
        await rig.tick()
        versions.append(rig.store.published[MODEL, POOL].version)
    assert max(versions.count(version) for version in versions[2:]) <= 5
    assert 4 <= len(set(versions)) <= 6


async def test_metrics_say_whether_schedules_are_renewed(rig: Rig) -> None:
    """In `advise` an engine's schedule grows old by design, after the static K was published once."""

    def publishing() -> float | None:
        labels = {"model_name": MODEL, "pool": POOL}
        return rig.metrics.registry.get_sample_value("specpilot_controller_publishing", labels)

    await rig.tick(2)
    assert publishing() == 1.0
    rig.store.put_policy(Policy(model=MODEL, mode=Mode.ADVISE), None, 0.0)
    await rig.tick(4)
    assert publishing() == 0.0


async def test_what_fails_in_one_pool_does_not_stop_the_others(
    rig: Rig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.store.heartbeat(replace(registered("two", 7), pool="another"), 60.0)
    decide = ControlLaw.decide

    def failing(law: ControlLaw, context: PoolContext, now: float, at: float) -> TickResult:
        if context.pool == "another":
            raise IndexError("nobody foresaw this")
        return decide(law, context, now, at)

    monkeypatch.setattr(ControlLaw, "decide", failing)
    await rig.tick(3)
    assert (MODEL, POOL) in rig.store.published
    assert (MODEL, "another") not in rig.store.published
    assert rig.loop.ticks == 3
    assert sum("another: not steered in this tick" in record.message for record in caplog.records) == 3


@pytest.mark.parametrize("hold", Hold)
async def test_a_pool_in_which_the_law_fails_can_be_frozen(
    rig: Rig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, hold: Hold
) -> None:
    await rig.tick(20)
    before = rig.store.published[MODEL, POOL]

    def failing(*_: object) -> TickResult:
        raise IndexError("nobody foresaw this")

    monkeypatch.setattr(ControlLaw, "decide", failing)
    await rig.tick(7)
    assert rig.store.published[MODEL, POOL] == before
    rig.store.frozen[MODEL] = Freeze(MODEL, hold, 0.0)
    await rig.tick(8)
    now = rig.store.published[MODEL, POOL]
    assert now.version >= before.version + 2  # and renewed
    assert now.guidance is None
    assert now.classes == (before.classes if hold is Hold.CURRENT else {"default": ((1, 64, 3),)})
    assert rig.store.log[-1].reason == "frozen"
    assert "FROZEN" in text(explain(rig.store.log[-1])).upper()
    assert sum("the law fails; the freeze's schedule is published" in record.message for record in caplog.records) == 8
    assert rig.metrics.registry.get_sample_value("specpilot_controller_tick_errors_total") == 15
    rig.store.published.clear()
    await rig.tick()
    assert k_of(rig.store.published[MODEL, POOL].classes) == 3


async def test_an_engine_that_drafts_less_may_join_a_busy_pool(rig: Rig) -> None:
    """Its K_max bounds the pool's at once, also where the schedule in force goes deeper."""
    await rig.tick(20)
    in_force = rig.store.published[MODEL, POOL]
    assert in_force.deepest_k > 2
    rig.store.heartbeat(replace(registered("two", 7), k_max=2, static_k=2), 60.0)
    await rig.tick()
    assert rig.store.published[MODEL, POOL].version > in_force.version
    assert rig.store.published[MODEL, POOL].deepest_k <= 2
    await rig.tick(10)
    assert rig.metrics.registry.get_sample_value("specpilot_controller_tick_errors_total") == 0


async def test_what_is_told_of_a_pool_goes_with_it(rig: Rig) -> None:
    await rig.tick(12)
    assert f'pool="{POOL}"' in rig.page()
    assert "specpilot_controller_survival_ratio{" in rig.page()
    rig.store.remove_engine("one")
    await rig.tick()
    gauges = [line for line in rig.page().splitlines() if f'pool="{POOL}"' in line and "decisions" not in line]
    assert gauges == []


async def test_without_redis_it_goes_on_and_says_so_once(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await rig.tick(8)
    version = rig.store.published[MODEL, POOL].version
    rig.store.is_down = True
    await rig.tick(5)
    assert rig.store.published[MODEL, POOL].version == version
    assert rig.loop.ticks == 13
    rig.store.is_down = False
    await rig.tick(2)
    assert rig.store.published[MODEL, POOL].version > version
    said = [record.message for record in caplog.records]
    assert sum("going on with the last known state" in line for line in said) == 1
    assert sum("Redis answers again" in line for line in said) == 1


async def test_a_full_redis_is_said_once_and_is_not_a_silent_one(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await rig.tick(8)
    published = rig.store.published[MODEL, POOL]
    rig.store.is_full = True
    await rig.tick(5)
    assert rig.store.published[MODEL, POOL] == published
    assert rig.metrics.registry.get_sample_value("specpilot_controller_store_up") == 1.0
    rig.store.is_full = False
    await rig.tick(3)
    assert rig.store.published[MODEL, POOL].version > published.version
    said = [record.message for record in caplog.records]
    assert sum("schedules stay as they are: Redis is full (maxmemory)" in line for line in said) == 1
    assert sum("Redis takes schedules and decisions again" in line for line in said) == 1
    assert not any("last known state" in line or "answers again" in line for line in said)


def memory_shown(rig: Rig) -> list[float | None]:
    name = "specpilot_controller_redis_memory_{}_bytes"
    return [rig.metrics.registry.get_sample_value(name.format(kind)) for kind in ("used", "max")]


async def test_how_full_redis_is_is_asked_now_and_then_and_shown_while_it_is_known(rig: Rig) -> None:
    rig.store.used = StoreMemory(900, 1000)
    await rig.tick(5)  # a second each
    assert (memory_shown(rig), rig.store.looks) == ([900.0, 1000.0], 1)
    rig.store.used = StoreMemory(950, 0)
    await rig.tick()
    assert (memory_shown(rig), rig.store.looks) == ([950.0, 0.0], 2)
    rig.store.is_down = True
    await rig.tick()
    assert memory_shown(rig) == [None, None]
    rig.store.is_down, rig.store.used = False, None  # a service that does not state it
    await rig.tick(6)
    assert memory_shown(rig) == [None, None]


async def test_a_redis_that_does_not_say_how_full_it_is_answers_all_the_same(
    rig: Rig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: MemoryStore) -> None:
        raise StoreUnavailableError("Redis refused a command: no permissions to run the 'info' command")

    monkeypatch.setattr(MemoryStore, "memory", refuse)
    await rig.tick(7)
    assert (MODEL, POOL) in rig.store.published
    assert rig.metrics.registry.get_sample_value("specpilot_controller_store_up") == 1.0
    assert memory_shown(rig) == [None, None]
    assert "refused a command" not in caplog.text


async def test_a_deposed_leader_stands_down(rig: Rig) -> None:
    await rig.tick()
    assert rig.leadership.lease is not None
    rig.store.fence += 1
    rig.store.leader = Lease("other", rig.store.fence)
    before = rig.store.published[MODEL, POOL]
    await rig.tick(3)
    assert rig.leadership.lease is None
    assert rig.store.published[MODEL, POOL] == before


async def test_a_lease_that_was_not_renewed_in_time_is_not_ours(rig: Rig) -> None:
    await rig.tick()
    rig.clock.at += TTL_S
    assert rig.leadership.lease is None


async def test_a_policy_takes_effect_in_the_next_tick(rig: Rig) -> None:
    await rig.tick(2)
    rig.store.put_policy(Policy(model=MODEL, mode=Mode.OFF, static_k=6), None, 0.0)
    await rig.tick()
    assert {item.k for ranges in rig.store.published[MODEL, POOL].classes.values() for item in ranges} == {6}
    assert rig.store.log[-1].reason == "off"


async def test_an_engine_that_cannot_speculate_has_no_say_in_its_pool(rig: Rig) -> None:
    await rig.tick(20)
    assert rig.store.published[MODEL, POOL].deepest_k > 2
    rig.store.heartbeat(replace(registered("two", 7), k_max=0, static_k=0), 60.0)
    await rig.tick(5)
    assert rig.store.published[MODEL, POOL].deepest_k > 2


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


async def test_advise_publishes_nothing_where_engines_hold_nothing(rig: Rig) -> None:
    rig.store.heartbeat(registered("one"), 1e9)
    rig.store.put_policy(Policy(model=MODEL, mode=Mode.ADVISE), None, 0.0)
    await rig.tick(20)
    assert rig.store.published == {}
    assert rig.store.log[-1].published is False
    assert rig.store.log[-1].k == {}


async def test_advise_after_act_withdraws_the_schedule_once(rig: Rig) -> None:
    """Engines hold a schedule that nobody renews, so to fall silent would leave K steered."""
    await rig.tick(20)
    before = rig.store.published[MODEL, POOL]
    rig.store.put_policy(Policy(model=MODEL, mode=Mode.ADVISE, static_k=2), None, 0.0)
    await rig.tick(20)
    found = rig.store.published[MODEL, POOL]
    assert {k for ranges in found.classes.values() for _, _, k in ranges} == {2}
    assert (found.version, found.probe_ratio) == (before.version + 1, 0.0)


async def test_advise_withdraws_what_engines_hold_and_redis_lost(rig: Rig) -> None:
    await rig.tick(20)
    held = rig.store.published[MODEL, POOL].version
    rig.store.heartbeat(registered("one", schedule_version=held), 1e9)
    rig.store.put_policy(Policy(model=MODEL, mode=Mode.ADVISE, static_k=2), None, 0.0)
    rig.store.published.clear()
    await rig.tick(20)
    found = rig.store.published[MODEL, POOL]
    assert {k for ranges in found.classes.values() for _, _, k in ranges} == {2}
    assert found.version == held + 1


@pytest.mark.parametrize("change", [{"static_k": 2}, {"k_max": 5}, {"classes": {"a": ClassPolicy(weight=2.0)}}])
async def test_what_the_hold_out_measured_is_dropped_when_other_things_are_compared(
    rig: Rig, change: dict[str, Any]
) -> None:
    def windows() -> int:
        return int(rig.store.log[-1].evidence["hold_out"]["windows"])

    policy = Policy(model=MODEL, hold_out_ratio=0.4)
    rig.store.put_policy(policy, None, 0.0)
    await rig.tick(120)
    measured = windows()
    assert measured >= 3
    rig.store.put_policy(replace(policy, match=(), probe_ratio=0.01), None, 0.0)
    await rig.tick(2)
    assert windows() >= measured
    rig.store.put_policy(replace(policy, **change), None, 0.0)
    await rig.tick(2)
    assert windows() == 0


@pytest.mark.parametrize("hold_out_ratio", [0.4, 0.0])
async def test_a_canary_that_wants_other_things_leaves_what_the_hold_out_measured(
    rig: Rig, hold_out_ratio: float
) -> None:
    policy = Policy(model=MODEL, hold_out_ratio=0.4)
    rig.store.put_policy(policy, None, 0.0)
    await rig.tick(120)
    measured = rig.store.log[-1].evidence["hold_out"]["windows"]
    assert measured >= 3
    canary = Canary(replace(policy, k_max=5, static_k=2, hold_out_ratio=hold_out_ratio))
    experiment = Experiment(1, "id", canary, rig.store.stored[MODEL].version, rig.clock.now())
    rig.store.put_canary(experiment, None, 0.0)
    await rig.tick(60)
    assert any(item.evidence.get("canary") for item in rig.store.log)
    running = rig.store.tried[MODEL]
    in_its_turn = [item for item in rig.store.log if (item.evidence.get("canary") or {}).get("arm") == "canary"]
    assert all(item.evidence["hold_out"]["is_paused"] for item in in_its_turn)
    ended = replace(running, version=running.version + 1, outcome=Outcome.ABORTED, ended_at=1.0)
    rig.store.put_canary(ended, None, 0.0)
    await rig.tick(2)
    assert rig.store.log[-1].evidence["hold_out"]["windows"] >= measured


@pytest.mark.parametrize("mode", [Mode.ADVISE, Mode.OFF])
async def test_what_the_hold_out_found_is_in_every_decision_also_while_it_pauses(rig: Rig, mode: Mode) -> None:
    """A controller that takes over reads from it whether the pool had fallen back."""
    policy = Policy(model=MODEL, hold_out_ratio=0.4)
    rig.store.put_policy(policy, None, 0.0)
    await rig.tick(120)
    before = rig.store.log[-1].evidence["hold_out"]
    rig.store.put_policy(replace(policy, mode=mode), None, 0.0)
    await rig.tick(5)
    assert rig.store.log[-1].evidence["hold_out"] == {**before, "is_paused": True}
    assert "specpilot_controller_hold_out_gain_ratio{" not in rig.page()  # it tells nothing of now, and alerts nobody


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
    rig.store.put_policy(Policy(model=MODEL, static_k=0, hold_out_ratio=0.3), None, 0.0)
    found = []
    for _ in range(80):
        drawn = rig.store.published[MODEL, POOL].drawn if (MODEL, POOL) in rig.store.published else ()
        await rig.tick()
        throughput = rig.store.log[-1].evidence.get("throughput")
        if drawn and throughput:
            found.append(throughput)
    assert len(found) >= 8
    assert all(item["predicted_in_force"] == item["predicted_static"] for item in found)


async def test_another_probe_ratio_is_published_at_once(rig: Rig) -> None:
    await rig.tick(30)
    rig.store.put_policy(Policy(model=MODEL, probe_ratio=0.0), None, 0.0)
    await rig.tick(1)
    assert rig.store.published[MODEL, POOL].probe_ratio == 0.0


async def test_a_stale_pool_is_never_moved_to_the_hold_outs_static_k(rig: Rig) -> None:
    """Not even in a window that is drawn."""
    policy = Policy(model=MODEL, hold_out_ratio=0.0, static_k=0)
    rig.store.put_policy(policy, None, 0.0)
    await rig.tick(30)
    rig.fleet.engines.clear()  # registered, and not to be scraped
    await rig.tick(30)
    for k_max in range(6, 0, -1):
        rig.store.put_policy(replace(policy, hold_out_ratio=0.5, k_max=k_max), None, 0.0)
        await rig.tick(4)
        schedule = rig.store.published[MODEL, POOL]
        assert schedule.guidance is not None
        assert (schedule.guidance.classes["default"].k_max, schedule.drawn) == (k_max, ())
        assert rig.k() == k_max  # the last estimate, moved inside the bounds
    assert "hold_out" not in {item.reason for item in rig.store.log}


async def test_a_pool_that_is_gone_for_long_is_forgotten(rig: Rig) -> None:
    await rig.tick(5)
    rig.store.remove_engine("one")
    await rig.tick(2)
    assert (MODEL, POOL) in rig.store.published
    rig.clock.at += FORGET_S + 1
    await rig.tick(2)
    assert rig.store.published == {}
    assert rig.loop._law._pools == {}
    assert f'pool="{POOL}"' not in rig.page()


async def test_a_loop_that_hangs_is_seen_and_leaves_its_lease(rig: Rig) -> None:
    await rig.tick()
    assert not rig.loop.is_hanging
    rig.clock.at += HANG_S + 5
    assert rig.loop.is_hanging
    await rig.loop.tick()
    assert not rig.loop.is_hanging


async def test_the_lease_of_a_loop_that_hangs_runs_out(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(lease, "RENEW_S", 0.005)
    monkeypatch.setattr(rig.loop, "tick", hang)
    running = asyncio.create_task(rig.loop.run())
    await asyncio.sleep(0.1)
    assert rig.leadership.lease is not None
    rig.clock.at += HANG_S + 5
    await asyncio.sleep(0.1)
    assert rig.leadership.lease is None
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_a_controller_whose_loop_hangs_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    async def tick_once(loop: ControlLoop) -> None:
        if loop.ticks:
            await asyncio.Event().wait()
        loop.ticks = 1

    monkeypatch.setattr(ControlLoop, "tick", tick_once)
    rig = Rig.new()
    settings = ControllerSettings(redis_url="redis://unused", trust_this_machine=True)
    with TestClient(create_app(settings, rig.store, rig.clock)) as client:
        assert client.get("/ready").status_code == 200
        rig.clock.at += HANG_S + 5
        found = client.get("/ready")
    assert (found.status_code, "has not ended a tick" in found.json()["problem"]) == (503, True)


async def test_the_deprecated_metrics_show_what_the_new_ones_show(rig: Rig) -> None:
    await rig.tick(10)
    page = rig.page()
    for name in ("predicted_{}_tokens_per_second", "measured_{}_tokens_per_second"):
        new, old = (
            sorted(re.findall(rf"^specpilot_controller_{name.format(word)}(.*)$", page, re.MULTILINE))
            for word in ("weighted_throughput", "goodput")
        )
        assert new == old
        assert new


async def test_unknown_is_never_shown_as_a_number(rig: Rig) -> None:
    await rig.tick(3)
    assert "NaN" not in rig.page()
    assert "nan" not in text(explain(rig.store.log[-1]))


ENGINES_CHOOSE = Policy(
    MODEL, static_k=1, k_max=5, hold_out_ratio=0.0,
    classes={"code": ClassPolicy(weight=2.0, itl_slo_ms=900.0), "batch": ClassPolicy(pin=6)},
)  # fmt: skip


async def test_where_engines_choose_they_get_the_policys_wishes_and_the_static_k_for_the_first_second(rig: Rig) -> None:
    rig.store.put_policy(ENGINES_CHOOSE, None, 0.0)
    await rig.tick(10)
    schedule, newest = rig.store.published[MODEL, POOL], rig.store.log[-1]
    assert schedule.guidance == Guidance(
        Objective.THROUGHPUT,
        {"default": ClassGuidance(k_max=5), "batch": ClassGuidance(1.0, 6, 6), "code": ClassGuidance(2.0, 0, 5, 900.0)},
    )
    assert {name: k_of(schedule.classes, name=name) for name in ("default", "code", "batch")} == {
        "default": 1, "code": 1, "batch": 6,
    }  # fmt: skip
    assert schedule.probe_ratio == ENGINES_CHOOSE.probe_ratio
    assert newest.reason == "adaptive"
    assert k_of(newest.schedule.classes) == 5  # the estimate of the engines' choice, within the bounds
    assert newest.k["default:7"] == 5
    explained = explain(newest)
    assert explained["guidance"]["classes"]["batch"]["k_max"] == 6
    assert "the engines' own choice" in text(explained)
    throughput = newest.evidence["throughput"]
    assert throughput["predicted_in_force"] == pytest.approx(throughput["measured"], rel=0.15)


@pytest.mark.parametrize("mode", [Mode.OFF, Mode.ADVISE])
async def test_another_mode_takes_the_guidance_away(rig: Rig, mode: Mode) -> None:
    rig.store.put_policy(ENGINES_CHOOSE, None, 0.0)
    await rig.tick(5)
    version = rig.store.published[MODEL, POOL].version
    rig.store.put_policy(replace(ENGINES_CHOOSE, mode=mode), None, 0.0)
    await rig.tick(2)
    now = rig.store.published[MODEL, POOL]
    assert (now.guidance, now.version > version, k_of(now.classes)) == (None, True, 1)


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


async def test_the_control_group_has_single_engines_follow_the_static_k(rig: Rig) -> None:
    rig.fleet.engines["two"] = Engine("two", np.random.default_rng(4))
    rig.store.heartbeat(registered("two"), 5.0)
    rig.store.put_policy(replace(ENGINES_CHOOSE, hold_out_ratio=0.3), None, 0.0)
    drawn, reasons, mean_k = set(), {}, {}
    for _ in range(120):
        before = {name: engine.by_source.sum(axis=0) for name, engine in rig.fleet.engines.items()}
        in_force = rig.store.published.get((MODEL, POOL))
        await rig.tick()
        if in_force is not None:
            for name, engine in rig.fleet.engines.items():
                decodes, k = engine.by_source.sum(axis=0) - (before[name] if before[name].any() else 0.0)
                mean_k.setdefault(name in in_force.drawn, []).append(k / decodes)
        schedule = rig.store.published[MODEL, POOL]
        assert schedule.guidance is not None
        drawn.add(schedule.drawn)
        reasons.setdefault(rig.store.log[-1].reason, set()).add(schedule.drawn)
    assert drawn == {(), ("one",), ("two",), ("one", "two")}
    assert reasons["hold_out"] == {("one", "two")}
    assert ("one",) in reasons["adaptive"]
    assert np.mean(mean_k[True][2:]) == pytest.approx(1.0, abs=0.1)
    assert np.mean(mean_k[False][5:]) > 4.0
    found = rig.store.log[-1].evidence["hold_out"]
    assert found["windows"] >= 5
    assert found["corrected_gain_ratio"]["mean"] > 0
    assert "throughput of decodes alone" in text(explain(rig.store.log[-1]))


async def test_engines_that_choose_fall_back_to_the_static_k_and_the_windows_run_their_law(rig: Rig) -> None:
    rig.store.put_policy(replace(ENGINES_CHOOSE, hold_out_ratio=0.3), None, 0.0)
    await rig.tick(10)
    hold_out = rig.loop.view().law._pools[MODEL, POOL].hold_out
    hold_out._tuning = replace(hold_out._tuning, stepped_back_ratio=0.4)
    hold_out.is_stepped_back = True
    found = set()
    for _ in range(30):
        await rig.tick()
        schedule = rig.store.published[MODEL, POOL]
        assert schedule.is_fallen_back
        found.add((rig.store.log[-1].reason, schedule.is_guided("one")))
    assert found == {("static_better", False), ("adaptive", True)}
