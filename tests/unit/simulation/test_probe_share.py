"""Probes take their allowed share of the time on any machine: the engine has learned their cost."""

import numpy as np
import pytest

from specpilot.engine_adapter.law.graphs import Graphs
from specpilot.policy.bands import BANDS
from tests.simulation.engine import Engine
from tests.simulation.h200_plant import FULL, H200Plant, graphs
from tests.simulation.plant import OneTime, Plant
from tests.simulation.step_times import cpu_catch_up_s, cpu_step_s, gpu_step_s
from tests.simulation.traffic import Source
from tests.support.k_tables import table

PLANTS: dict[str, tuple[Plant, Graphs | None]] = {
    "CPU": (OneTime(cpu_step_s, cpu_catch_up_s), None),
    "GPU": (OneTime(gpu_step_s, lambda rows: 1e-3 + 1e-6 * rows), None),
    "H200": (H200Plant(), graphs()),
    "H200, one graph for every mix": (H200Plant(graphs(FULL)), graphs(FULL)),
}


def steps_per_s(plant: Plant, known: Graphs | None, ratio: float) -> tuple[float, int]:
    """Return steps and probes of a second with 8 requests of long replies, whose only drafts are probes."""
    rng = np.random.default_rng(3)
    engine = Engine("e", rng, noise=0.0, reply_tokens=4000.0, plant=plant, graphs=known, calibrated_to=16)
    never = table(ratio, default=[0] * BANDS)
    engine._control.table = lambda _: never  # type: ignore[method-assign]
    engine.run(1.0, [Source(0.1, 8)], None)
    steps, began_at = engine.law.cost.steps, engine._now
    for _ in range(30):
        engine.run(1.0, [Source(0.1, 8)], None)
    engine.run(0.01, [Source(0.1, 8)], None)  # books the remaining evidence
    return (engine.law.cost.steps - steps) / (engine._now - began_at), engine.probes


@pytest.mark.parametrize("name", PLANTS)
def test_probes_take_their_share_of_the_time(name: str) -> None:
    plant, known = PLANTS[name]
    ratio = 0.02
    without, _ = steps_per_s(plant, known, 0.0)
    probing, probes = steps_per_s(plant, known, ratio)
    assert probes > 20
    assert 0.3 * ratio <= 1 - probing / without <= 1.25 * ratio
