"""The agent's thread feeds the engine's law, and passes single references to the scheduler's thread."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from specpilot.engine_adapter.agent.learning import REFRESH_S, Learning
from specpilot.engine_adapter.evidence.meter import Evidence, Meter, Outcome, StepShape
from specpilot.engine_adapter.law.law import LEAST_STEPS, EngineLaw
from specpilot.engine_adapter.plan.planner import Planner
from specpilot.engine_adapter.plan.speculation_control import Source, SpeculationControl
from specpilot.policy.schedule import Cause, ClassGuidance, FleetAcceptance, Guidance, Objective, Override, Schedule
from tests.support.measured_law import request


def scheduler(k_max: int = 7, own: Guidance = Guidance(probe_ratio=0.01)) -> Any:  # noqa: B008 - never changed
    return SimpleNamespace(
        control=SpeculationControl("m", "p", k_max, 0, 8, adapts=True, own_guidance=own),
        law=EngineLaw(k_max, 0, 8),
        meter=Meter(),
        planner=Planner(k_max, 64),
    )


def run(engine: Any, learning: Learning, seconds: float, began_at: float = 0.0) -> None:
    at = began_at
    while at < began_at + seconds:
        for _ in range(LEAST_STEPS):
            engine.meter.commit(StepShape(4, 4, 0), 0.005, 100, Outcome())
        evidence = engine.meter.take_evidence()
        evidence.drafts["default", 6, 7] += 1
        learning.learn(evidence, at)
        at += REFRESH_S


def test_before_a_schedule_the_law_chooses_by_the_engines_flags() -> None:
    engine = scheduler(own=Guidance(classes={"default": ClassGuidance(k_min=1)}, probe_ratio=0.01))
    assert engine.planner.prices is None
    run(engine, Learning(engine), 3.0)
    assert engine.planner.prices is engine.law.probe_prices is not None
    table = engine.control.table(10.0)
    assert (table.source, table.probe_ratio) == (Source.LAW, 0.01)
    assert engine.law.requirements.distinct == [ClassGuidance(k_min=1)]


def test_each_refresh_brings_a_new_table_so_that_repeated_steps_are_planned_anew() -> None:
    engine = scheduler()
    learning = Learning(engine)
    run(engine, learning, 2.0)
    before = engine.control.table(0.0)
    learning.learn(engine.meter.take_evidence(), 2.0 * REFRESH_S - 0.5)
    assert engine.control.table(0.0) is before
    learning.learn(engine.meter.take_evidence(), 2.0 * REFRESH_S)
    assert engine.control.table(0.0) is not before


def test_an_engine_that_cannot_speculate_adapts_nothing() -> None:
    engine = scheduler(k_max=0)
    run(engine, Learning(engine), 3.0)
    assert engine.control.table(0.0).source is Source.FIXED


def guided(version: int, weight: float, objective: Objective = Objective.THROUGHPUT) -> Schedule:
    asked = {"default": ClassGuidance(), "chat": ClassGuidance(weight, 1, 64, 25.0), "code": ClassGuidance(1.0, 4, 4)}
    return Schedule("m", "p", version, 0.0, Guidance(objective, asked, 0.02))


def overridden(version: int, override: Override | None) -> Schedule:
    schedule = guided(version, 2.0)
    return replace(schedule, guidance=replace(schedule.guidance, override=override))


def test_guidance_is_followed_and_changes_with_the_next_export() -> None:
    engine = scheduler()
    learning = Learning(engine)
    engine.control.offer(guided(1, 2.0), 0.0)
    run(engine, learning, 3.0)
    table = engine.control.table(3.0)
    assert (table.source, table.probe_ratio, table.law) == (Source.LAW, 0.02, engine.law)
    assert table.probe_depths == {"default": 7, "chat": 7}  # `code` is pinned
    requirements = engine.law.requirements
    assert requirements.distinct[requirements.index_of["chat"]] == ClassGuidance(2.0, 1, 64, 25.0)
    engine.control.offer(guided(2, 3.0, Objective.LATENCY), 3.0)
    learning.learn(engine.meter.take_evidence(), 3.0 + REFRESH_S / 4)
    requirements = engine.law.requirements
    assert requirements.distinct[requirements.index_of["chat"]].weight == 3.0
    assert requirements.objective is Objective.LATENCY


def test_a_drawn_engine_follows_the_canarys_guidance_with_the_next_export() -> None:
    engine = scheduler()
    learning = Learning(engine)
    canary = guided(1, 5.0).guidance
    assert canary is not None
    canary = replace(canary, probe_ratio=0.04)
    engine.control.offer(replace(guided(1, 2.0), drawn=("",), drawn_guidance=canary, drawn_until=3.5), 0.0)
    for at, weight, probe_ratio in ((3.0, 5.0, 0.04), (3.6, 2.0, 0.02)):
        run(engine, learning, at)
        learning.learn(engine.meter.take_evidence(), at)
        requirements, table = engine.law.requirements, engine.control.table(at)
        assert (requirements.distinct[requirements.index_of["chat"]].weight, table.probe_ratio) == (weight, probe_ratio)


def test_a_renewed_schedule_and_an_override_keep_what_was_chosen() -> None:
    engine = scheduler()
    learning = Learning(engine)
    engine.control.offer(guided(1, 2.0), 0.0)
    run(engine, learning, 3.0)
    at = 2.0 + REFRESH_S / 2  # before the next refresh
    before, table = engine.law.requirements, engine.control.table(at)
    engine.control.offer(guided(2, 2.0), at)
    learning.learn(engine.meter.take_evidence(), at)
    assert engine.law.requirements is before
    assert engine.control.table(at) is table
    engine.control.offer(overridden(3, Override(0, Cause.CONTROL_GROUP)), at)
    learning.learn(engine.meter.take_evidence(), at)
    assert engine.law.requirements is before
    engine.control.offer(overridden(4, None), at)
    assert engine.control.table(at) is table


def test_a_hold_reaches_the_law_with_the_next_export_and_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, held = scheduler(), list[bool]()
    monkeypatch.setattr(engine.law, "hold", lambda *, is_held, between: held.append(is_held))
    learning = Learning(engine)
    for at, schedule in enumerate(
        (guided(1, 2.0), overridden(2, Override(None, Cause.FROZEN)), overridden(3, None), overridden(4, Override(2)))
    ):
        engine.control.offer(schedule, at)
        learning.learn(engine.meter.take_evidence(), at)
    assert held == [False, True, False, False]


def test_a_policy_that_is_written_during_a_freeze_changes_k_from_its_end_on() -> None:
    engine = scheduler()
    learning = Learning(engine)
    engine.control.offer(guided(1, 2.0), 0.0)
    run(engine, learning, 3.0)
    requests = [request(6)]
    before = engine.law.k_of(requests)
    frozen, written = Override(None, Cause.FROZEN), {"default": ClassGuidance(k_min=before[0] - 1, k_max=before[0] - 1)}
    for version, override, classes, expected in (
        (2, frozen, None, before),
        (3, frozen, written, before),
        (4, None, written, [before[0] - 1]),
    ):
        schedule = overridden(version, override)
        if classes is not None:
            schedule = replace(schedule, guidance=replace(schedule.guidance, classes=classes))
        engine.control.offer(schedule, 3.0 + version)
        for _ in range(2):
            learning.learn(engine.meter.take_evidence(), 3.0 + version)
            assert engine.law.k_of(requests) == expected


def test_with_the_fleets_acceptance_an_engine_chooses_before_its_first_draft() -> None:
    engine = scheduler()
    learning = Learning(engine)
    trials, accepts = ((200.0, 190.0),) * 8, ((190.0, 180.0),) * 8
    engine.control.offer(replace(guided(1, 2.0), fleet=FleetAcceptance(trials, accepts)), 0.0)
    for at in (0.0, REFRESH_S):
        for _ in range(LEAST_STEPS):
            engine.meter.commit(StepShape(4, 4, 0), 0.005, 100, Outcome())
        engine.meter.take_evidence()
        learning.learn(Evidence(), at)
    assert engine.control.table(REFRESH_S).source is Source.LAW
    assert engine.law.estimates.lengths[0, 1] == pytest.approx(1.95, abs=0.02)  # not the middle of band 0


def test_new_guidance_and_its_probes_come_into_force_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refresh takes some milliseconds, in which steps are planned."""
    engine = scheduler()
    learning = Learning(engine)
    engine.control.offer(guided(1, 2.0), 0.0)
    run(engine, learning, 3.0)
    found: list[tuple[Any, Any]] = []
    refresh = engine.law.refresh

    def refreshing(between: Any) -> None:
        found.append((engine.law.requirements.probe_depth, engine.control.table(4.0).probe_depths))
        refresh(between)

    monkeypatch.setattr(engine.law, "refresh", refreshing)
    classes = {"default": ClassGuidance(1.0, 0, 0), "chat": ClassGuidance(k_max=3)}
    engine.control.offer(Schedule("m", "p", 2, 0.0, Guidance(Objective.THROUGHPUT, classes, 0.02)), 3.5)
    engine.meter.commit(StepShape(4, 4, 0), 0.005, 100, Outcome())
    learning.learn(engine.meter.take_evidence(), 4.0)
    assert found == [({"default": 0, "chat": 3}, {"chat": 3})]


def test_without_a_step_or_new_counts_of_the_fleet_nothing_is_computed_anew() -> None:
    engine = scheduler()
    learning = Learning(engine)
    run(engine, learning, 3.0)
    priced = engine.law.prices
    learning.learn(engine.meter.take_evidence(), 10.0)
    assert engine.law.prices is priced
    trials, accepts = ((200.0, 190.0),) * 8, ((190.0, 180.0),) * 8
    engine.control.offer(replace(guided(1, 20.0), fleet=FleetAcceptance(trials, accepts)), 11.0)
    learning.learn(engine.meter.take_evidence(), 12.0)
    assert engine.law.prices is not priced
    priced = engine.law.prices
    engine.meter.commit(StepShape(4, 4, 0), 0.005, 100, Outcome())
    learning.learn(engine.meter.take_evidence(), 14.0)
    assert engine.law.prices is not priced
