"""A controller has the prices by which an engine chooses, from the engine's page of metrics."""

import random

import pytest

from specpilot.controller.estimation.engine_prices import price_list_of
from specpilot.controller.telemetry.exposition import PageReader
from specpilot.engine_adapter.agent.export import MetricsExporter
from specpilot.engine_adapter.evidence.meter import Evidence, StepShape
from specpilot.engine_adapter.law.law import EngineLaw
from specpilot.policy import engine_metrics as names
from specpilot.policy.graphs import Graphs

K_MAX, RUNNING = 7, 32
LADDER = (1, 2, 4, 8, 16, 32, 64, 128)
GRAPHS = Graphs("FULL_AND_PIECEWISE", LADDER, {1: (8, 16, 32), 8: (64, 128, 256)}, LADDER)


def learned(graphs: Graphs | None, rng: random.Random) -> EngineLaw:
    """Return a law that measured random steps and saw traffic, some of it left out."""
    law = EngineLaw(K_MAX, 3, RUNNING, graphs)
    for _ in range(400):
        n, k = rng.randint(1, RUNNING), rng.randint(0, K_MAX)
        drafts, read, prefill = (k > 0) * n, rng.choice((0, 0, 40)), rng.choice((0, 0, 60))
        shape = StepShape(n, n + drafts * k, drafts * k, prefill, read, prefill == 0)
        seconds = 5e-3 + 1.1e-4 * (shape.verified + prefill) + (2e-3 + 6e-5 * drafts * k + 2e-5 * read) * (drafts > 0)
        law.learn([(shape, seconds * rng.uniform(0.9, 1.3), 200 * n)])
    law.learn([(StepShape(1, 1, 0), 5.1e-3 * slow, 200) for slow in (*([1.0] * 40), *([1.2] * 40))])  # slower of late
    evidence = Evidence()
    evidence.drafts["default", 7, K_MAX] = 50
    law.learn((), evidence)
    law.refresh()
    for _ in range(50):
        law.note_plan(16, 12, 30)
    law.refresh()
    return law


@pytest.mark.parametrize("graphs", [None, GRAPHS])
def test_the_prices_on_an_engines_page_are_those_that_its_law_chooses_by(graphs: Graphs | None) -> None:
    rng = random.Random(3)
    law, exporter, reader = learned(graphs, rng), MetricsExporter("m"), PageReader()
    exporter.show_law(law.price_list, law.decode_s)
    found = price_list_of(reader.read(exporter.text()))
    assert found is not None
    assert law.estimates is not None
    assert found.slowdown == pytest.approx(law.estimates.slowdown, rel=1e-9)
    assert found.slowdown != 1.0
    own, read = law.estimates.prices, found.prices(RUNNING * (1 + K_MAX), graphs)
    assert read.left_out_s == pytest.approx(own.left_out_s, rel=1e-9)
    assert read.left_out_s > 0
    for _ in range(300):
        n, k = rng.randint(1, RUNNING), rng.randint(0, K_MAX)
        is_uniform = rng.random() < 0.5
        m = n * (1 + k) if is_uniform else rng.randint(n, n * (1 + K_MAX))
        slots = rng.choice((0, n * k, rng.randint(1, n) * max(1, k)))
        expected = own.step_s(n, m, slots, is_uniform=is_uniform)
        assert read.step_s(n, m, slots, is_uniform=is_uniform) == pytest.approx(expected, rel=1e-9)


def test_an_engine_without_prices_and_one_that_exports_a_part_of_them_has_none() -> None:
    exporter = MetricsExporter("m")
    exporter.show({"default": 1}, {"default": 3.0}, 0, 1, None)
    assert price_list_of(PageReader().read(exporter.text())) is None
    exporter.show_law(learned(None, random.Random(1)).price_list, 0.0)
    values = PageReader().read(exporter.text())
    assert price_list_of(values) is not None
    for name in (names.PRICE_SECONDS, names.SLOWDOWN_RATIO, names.CONTEXT_TOKENS):
        part = {series: value for series, value in values.items() if series.metric != name}
        assert price_list_of(part) is None
