"""The agent's thread feeds the engine's law, and passes single references to the scheduler's thread."""

from types import SimpleNamespace
from typing import Any

import pytest

from specpilot.engine_adapter.agent.learning import Learning
from specpilot.engine_adapter.evidence.meter import Meter, Outcome, StepShape
from specpilot.engine_adapter.law.law import EngineLaw
from specpilot.engine_adapter.law.tuning import LEAST_STEPS, REFRESH_S
from specpilot.engine_adapter.plan.planner import Planner
from specpilot.engine_adapter.plan.speculation_control import Source, SpeculationControl


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
        learning.learn(engine.meter.take(), at)
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
    learning.learn(engine.meter.take(), 2.0 * REFRESH_S - 0.5)
    assert engine.control.table(0.0) is before
    learning.learn(engine.meter.take(), 2.0 * REFRESH_S)
    assert engine.control.table(0.0) is not before


def test_an_engine_that_cannot_speculate_adapts_nothing() -> None:
    engine = scheduler(k_max=0)
    run(engine, Learning(engine, adapts=True, probe_ratio=0.01), 3.0)
    assert engine.control.table(0.0).source is Source.STATIC
