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
from specpilot.policy.schedule import ClassGuidance, FleetAcceptance, Guidance, KRange, Objective, Schedule


def scheduler(k_max: int = 7) -> Any:
    return SimpleNamespace(
        control=SpeculationControl("m", "p", k_max, 0, 8),
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


@pytest.mark.parametrize(("adapts", "source"), [(True, Source.ENGINE), (False, Source.STATIC)])
def test_probes_are_priced_in_any_case_and_k_is_chosen_if_it_adapts(adapts: bool, source: Source) -> None:
    engine = scheduler()
    assert engine.planner.prices is None
    run(engine, Learning(engine, adapts=adapts, probe_ratio=0.01), 3.0)
    assert engine.planner.prices is engine.law.probe_prices is not None
    table = engine.control.table(10.0)
    assert table.source is source
    assert table.probe_ratio == (0.01 if adapts else 0.0)


def test_each_refresh_brings_a_new_table_so_that_repeated_steps_are_planned_anew() -> None:
    engine = scheduler()
    learning = Learning(engine, adapts=True, probe_ratio=0.0)
    run(engine, learning, 2.0)
    before = engine.control.table(0.0)
    learning.learn(engine.meter.take_evidence(), 2.0 * REFRESH_S - 0.5)
    assert engine.control.table(0.0) is before
    learning.learn(engine.meter.take_evidence(), 2.0 * REFRESH_S)
    assert engine.control.table(0.0) is not before


def test_an_engine_that_cannot_speculate_adapts_nothing() -> None:
    engine = scheduler(k_max=0)
    run(engine, Learning(engine, adapts=True, probe_ratio=0.01), 3.0)
    assert engine.control.table(0.0).source is Source.STATIC


def guided(version: int, weight: float, objective: Objective = Objective.THROUGHPUT) -> Schedule:
    asked = {"default": ClassGuidance(), "chat": ClassGuidance(weight, 1, 64, 25.0), "code": ClassGuidance(1.0, 4, 4)}
    rows = {"default": (KRange(1, 8, 2),)}
    return Schedule("m", "p", version, 0.0, 10.0, 0.0, rows, guidance=Guidance(objective, asked, 0.02))


def test_guidance_is_followed_as_soon_as_traffic_was_seen_and_changes_with_the_next_export() -> None:
    engine = scheduler()
    learning = Learning(engine, adapts=False, probe_ratio=0.01)
    engine.control.offer(guided(1, 2.0), 0.0)
    assert engine.control.table(0.0).source is Source.SCHEDULE  # the law knows nothing
    run(engine, learning, 3.0)
    table = engine.control.table(3.0)
    assert (table.source, table.probe_ratio, table.law) == (Source.GUIDANCE, 0.02, engine.law)
    assert table.probed == {"default": 7, "chat": 7}  # `code` is pinned
    requirements = engine.law.requirements
    assert requirements.distinct[requirements.index_of["chat"]] == ClassGuidance(2.0, 1, 64, 25.0)
    engine.control.offer(guided(2, 3.0, Objective.LATENCY), 3.0)
    learning.learn(engine.meter.take_evidence(), 3.0 + REFRESH_S / 4)
    requirements = engine.law.requirements
    assert requirements.distinct[requirements.index_of["chat"]].weight == 3.0
    assert requirements.objective is Objective.LATENCY


def test_a_drawn_engine_follows_the_canarys_guidance_with_the_next_export() -> None:
    engine = scheduler()
    learning = Learning(engine, adapts=False, probe_ratio=0.01)
    canary = replace(guided(1, 5.0).guidance, probe_ratio=0.04)
    engine.control.offer(replace(guided(1, 2.0), drawn=("",), drawn_guidance=canary, drawn_until=3.5), 0.0)
    for at, weight, probe_ratio in ((3.0, 5.0, 0.04), (3.6, 2.0, 0.02)):
        run(engine, learning, at)
        learning.learn(engine.meter.take_evidence(), at)
        requirements, table = engine.law.requirements, engine.control.table(at)
        assert (requirements.distinct[requirements.index_of["chat"]].weight, table.probe_ratio) == (weight, probe_ratio)


def test_when_guidance_is_over_the_flags_of_the_engine_hold_again() -> None:
    engine = scheduler()
    learning = Learning(engine, adapts=True, probe_ratio=0.01, least_k=1)
    engine.control.offer(guided(1, 2.0), 0.0)
    run(engine, learning, 3.0)
    assert engine.control.table(3.0).source is Source.GUIDANCE
    learning.learn(engine.meter.take_evidence(), 11.0)
    assert engine.control.table(11.0).source is Source.ENGINE
    assert engine.law.requirements.distinct == [ClassGuidance(k_min=1)]


def test_a_renewed_schedule_with_the_same_guidance_keeps_what_was_chosen() -> None:
    engine = scheduler()
    learning = Learning(engine, adapts=False, probe_ratio=0.01)
    engine.control.offer(guided(1, 2.0), 0.0)
    run(engine, learning, 3.0)
    at = 2.0 + REFRESH_S / 2  # before the next refresh
    before, table = engine.law.requirements, engine.control.table(at)
    engine.control.offer(guided(2, 2.0), at)
    learning.learn(engine.meter.take_evidence(), at)
    assert engine.law.requirements is before
    assert engine.control.table(at) is table


def test_with_the_fleets_acceptance_an_engine_chooses_before_its_first_draft() -> None:
    engine = scheduler()
    learning = Learning(engine, adapts=False, probe_ratio=0.01)
    trials, accepts = ((200.0, 190.0),) * 8, ((190.0, 180.0),) * 8
    engine.control.offer(replace(guided(1, 2.0), fleet=FleetAcceptance(trials, accepts)), 0.0)
    for at in (0.0, REFRESH_S):
        for _ in range(LEAST_STEPS):
            engine.meter.commit(StepShape(4, 4, 0), 0.005, 100, Outcome())
        engine.meter.take_evidence()
        learning.learn(Evidence(), at)
    assert engine.control.table(REFRESH_S).source is Source.GUIDANCE
    assert engine.law.estimates.lengths[0, 1] == pytest.approx(1.95, abs=0.02)  # not the middle of band 0


def test_new_guidance_and_its_probes_come_into_force_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refresh takes some milliseconds, in which steps are planned."""
    engine = scheduler()
    learning = Learning(engine, adapts=False, probe_ratio=0.01)
    engine.control.offer(guided(1, 2.0), 0.0)
    run(engine, learning, 3.0)
    found: list[tuple[Any, Any]] = []
    refresh = engine.law.refresh

    def refreshing(between: Any) -> None:
        found.append((engine.law.requirements.probe_depth, engine.control.table(4.0).probed))
        refresh(between)

    monkeypatch.setattr(engine.law, "refresh", refreshing)
    pinned = {"default": ClassGuidance(1.0, 0, 0)}
    rows = {"default": (KRange(1, 8, 2),)}
    guidance = Guidance(Objective.THROUGHPUT, pinned, 0.02)
    engine.control.offer(Schedule("m", "p", 2, 0.0, 10.0, 0.0, rows, guidance=guidance), 3.5)
    engine.meter.commit(StepShape(4, 4, 0), 0.005, 100, Outcome())
    learning.learn(engine.meter.take_evidence(), 4.0)
    assert found == [({"default": 0}, {})]


def test_without_a_step_or_new_counts_of_the_fleet_nothing_is_computed_anew() -> None:
    engine = scheduler()
    learning = Learning(engine, adapts=True, probe_ratio=0.01)
    run(engine, learning, 3.0)
    priced = engine.law.price_list
    learning.learn(engine.meter.take_evidence(), 10.0)
    assert engine.law.price_list is priced
    trials, accepts = ((200.0, 190.0),) * 8, ((190.0, 180.0),) * 8
    engine.control.offer(replace(guided(1, 20.0), fleet=FleetAcceptance(trials, accepts)), 11.0)
    learning.learn(engine.meter.take_evidence(), 12.0)
    assert engine.law.price_list is not priced
    priced = engine.law.price_list
    engine.meter.commit(StepShape(4, 4, 0), 0.005, 100, Outcome())
    learning.learn(engine.meter.take_evidence(), 14.0)
    assert engine.law.price_list is not priced
