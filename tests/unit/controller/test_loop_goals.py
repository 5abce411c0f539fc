"""Latency goals in the whole loop: the margin is published, shown, and goes on under the next leader."""

from dataclasses import replace

from specpilot.controller.decision.context import CanaryWindow, PoolContext
from specpilot.controller.decision.decider import Decider
from specpilot.controller.decision.latency_margin import margins_of
from specpilot.controller.estimation.switchback import Plan
from specpilot.controller.recording.explanation import explain
from specpilot.policy.latency_goal import Slo, Statistic
from specpilot.policy.model_policy import ClassPolicy, Mode, Policy
from specpilot.policy.schedule import Schedule
from tests.simulation.engine import MODEL, POOL
from tests.simulation.traffic import Source
from tests.support.loop_rig import Rig, text

SLO = Slo(tpot_ms={Statistic.P90: 20.0}, ttft_ms={Statistic.P95: 500.0})
POLICY = Policy(MODEL, control_group_ratio=0.0, classes={"chat": ClassPolicy(slo=SLO), "json": ClassPolicy()})


def margin(rig: Rig, slo: Slo = SLO) -> float:
    return margins_of(rig.store.published[MODEL, POOL].guidance, {"chat": slo})["chat"]


def with_goal(rig: Rig, policy: Policy = POLICY) -> None:
    rig.fleet.sources[:] = [Source("chat", 6, "chat"), Source("json", 6, "json")]
    rig.store.put_policy(policy, None, 0.0)


async def test_the_margin_is_published_shown_and_explained(rig: Rig) -> None:
    with_goal(rig)
    await rig.tick(40)
    assert margin(rig) != 1.0
    newest = rig.store.log[-1]
    goals = newest.evidence["slo"]["chat"]
    assert goals["tpot"]["margin"] == margin(rig)
    assert goals["ttft"]["attained_ratio"]["5m"] == 1.0
    labels = f'model_name="{MODEL}",pool="{POOL}",traffic_class="chat",measure="tpot"'
    sorted_labels = 'measure="tpot",' + labels.removesuffix(',measure="tpot"')
    page = rig.page()
    assert f"specpilot_controller_slo_margin_ratio{{{sorted_labels}}} {margin(rig)}" in page
    assert f"specpilot_controller_slo_target_ratio{{{sorted_labels}}} 0.9" in page
    assert "goal of chat: TPOT p90 20 ms, within it " in text(explain(newest))


async def test_the_next_leader_goes_on_with_the_margin(rig: Rig) -> None:
    with_goal(rig)
    await rig.tick(40)
    before = margin(rig)
    version = rig.store.published[MODEL, POOL].version
    other = Rig.new("other", beside=rig)
    rig.store.leader = None
    await other.tick(2)
    assert other.store.published[MODEL, POOL].version > version
    assert margin(other) == before


async def test_while_k_is_fixed_the_margin_stays_and_a_new_goal_begins_at_1(rig: Rig) -> None:
    with_goal(rig)
    await rig.tick(40)
    before = margin(rig)
    rig.store.put_policy(replace(POLICY, mode=Mode.OFF, static_k=7), None, 0.0)
    await rig.tick(20)
    assert margin(rig) == before
    changed = Slo(tpot_ms={Statistic.P90: 22.0})
    rig.store.put_policy(replace(POLICY, classes={"chat": ClassPolicy(slo=changed)}), None, 0.0)
    await rig.tick(1)
    guidance = rig.store.published[MODEL, POOL].guidance
    assert guidance.classes["chat"].tpot_bound_ms == 22.0


def test_a_canary_runs_by_the_margins_that_a_promotion_would_have() -> None:
    """That of the same goal goes on, that of another begins at 1."""
    other = Slo(tpot_ms={Statistic.P90: 40.0})
    canary = replace(POLICY, classes={**POLICY.classes, "json": ClassPolicy(slo=other)})
    present = replace(canary, classes={**canary.classes, "json": ClassPolicy(slo=SLO)})
    learned = PoolContext(MODEL, POOL, present, 7, 3, None, margins={"chat": 0.5, "json": 0.5}).guidance()
    window = CanaryWindow(Plan("canary", 2, 60.0), canary, is_drawn=True)
    in_force = Schedule(MODEL, POOL, 1, 0.0, learned)
    context = PoolContext(MODEL, POOL, present, 7, 3, in_force, window, engines=("one",))
    drawn = Decider().decide(context, 1.0, 1.0).drawn_guidance
    assert drawn is not None
    assert {name: drawn.classes[name].tpot_bound_ms for name in ("chat", "json")} == {"chat": 10.0, "json": 40.0}


async def test_the_control_group_goes_on_while_a_margin_moves(rig: Rig) -> None:
    slo = Slo(tpot_ms={Statistic.P50: 21.0})  # more than half are within it
    classes = {**POLICY.classes, "chat": ClassPolicy(slo=slo)}
    with_goal(rig, replace(POLICY, control_group_ratio=0.4, static_k=1, classes=classes))  # K = 1 keeps the goal
    await rig.tick(150)  # requests that ran in or beside a window move no margin
    assert margin(rig, slo) != 1.0
    assert rig.store.log[-1].evidence["control_group"]["windows"] >= 2
