"""In the asynchronous loop a step's time is the device's, not that between two updates of the host."""

from collections import defaultdict

import numpy as np
import pytest

from specpilot.engine_adapter.evidence.meter import Meter, Outcome, StepShape
from tests.simulation.engine import Engine
from tests.simulation.h200_plant import FULL, FULL_AND_PIECEWISE, H200Plant, graphs
from tests.simulation.loop import uniform
from tests.simulation.plant import Work
from tests.simulation.traffic import Source

PROMPT = 64
"""Tokens: more than a prompt has that waits at K = 0 to go through the drafter with others."""


class Recorder(Meter):
    """Keeps each step with its duration."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[StepShape, float]] = []

    def commit(self, shape: StepShape, seconds: float, context: int, outcome: Outcome) -> None:
        self.steps.append((shape, seconds))
        super().commit(shape, seconds, context, outcome)


def booked_ms(plant: H200Plant, k: int, *, reads_device: bool) -> dict[bool, float]:
    """Mean milliseconds of steps without and with a prompt: 31 requests at one K, replies of 100 tokens."""
    rng = np.random.default_rng(1)
    engine = Engine("e", rng, noise=0.0, reply_tokens=100.0, plant=plant, reads_device=reads_device)
    meter = engine._meter = engine._steps._meter = Recorder()
    engine.run(5.0, [Source(0.4, 31, prompt_tokens=PROMPT)], uniform(k))
    found: defaultdict[bool, list[float]] = defaultdict(list)
    for shape, seconds in meter.steps[50:]:
        found[shape.prefill > 0].append(1000 * seconds)
    return {is_prompt: float(np.mean(milliseconds)) for is_prompt, milliseconds in found.items()}


def true_ms(plant: H200Plant, k: int, *, prompt: bool) -> float:
    """Return the time of a step if all steps are like it."""
    prefill = {"prefill": PROMPT, "prompts": 1, "read": PROMPT - 1 if k == 0 else 0} if prompt else {}
    work = Work(31, 31 * (1 + k), 31 * k, **prefill)  # type: ignore[arg-type]
    return 1000 * max(plant.device_s(work), plant.host_s(work))


@pytest.mark.parametrize(("mode", "k"), [(FULL_AND_PIECEWISE, 0), (FULL_AND_PIECEWISE, 7), (FULL, 0)])
def test_a_prompt_is_found_at_its_own_step(mode: str, k: int) -> None:
    """Between two updates the prompt's time is in the step before, so that steps without a prompt seem longer."""
    plant = H200Plant(graphs(mode))
    device, updates = (booked_ms(plant, k, reads_device=value) for value in (True, False))
    true = true_ms(plant, k, prompt=False)
    assert device[False] == pytest.approx(true, rel=0.02)
    assert updates[False] > 1.08 * true
    assert device[True] - device[False] > 0.4 * (true_ms(plant, k, prompt=True) - true)
    assert updates[True] < updates[False]


def test_what_is_booked_adds_up_to_the_time_that_passed() -> None:
    engine = Engine("e", np.random.default_rng(1), noise=0.0, reply_tokens=100.0, plant=H200Plant())
    meter = engine._meter = engine._steps._meter = Recorder()
    engine.run(5.0, [Source(0.4, 31)], uniform(3))
    assert sum(seconds for _, seconds in meter.steps) == pytest.approx(engine._device_done_at, rel=0.01)
