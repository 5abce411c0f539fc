"""Heads that draft one token in each pass (EAGLE, MTP): the step's largest K costs passes, whoever drafts."""

from typing import Any

import numpy as np
import pytest

from tests.simulation.loop import simulate, uniform
from tests.simulation.plant import Sequential
from tests.simulation.step_times import cpu_catch_up_s, cpu_step_s, gpu_step_s
from tests.simulation.traffic import Phase, Source

CPU = Sequential(cpu_step_s, cpu_catch_up_s, pass_s=1.3e-3, row_s=2e-5)
GPU = Sequential(gpu_step_s, cpu_catch_up_s, pass_s=6e-4, row_s=4e-6)
K_MAX, SETTLE_S, SEEDS = 3, 3, 2


def rate(plant: Sequential, phase: Phase, **how: Any) -> float:
    """Return tokens per second, the mean of some seeds."""
    told = {"plant": plant, "k_max": K_MAX, "is_parallel": False, "reply_tokens": 200.0, **how}
    return float(np.mean([simulate([phase], seed=seed, **told).throughput(0, SETTLE_S) for seed in range(SEEDS)]))


@pytest.mark.parametrize(
    ("plant", "sources", "best_k"),
    [
        (CPU, [Source(0.93, 8), Source(0.4, 8)], 0),
        pytest.param(
            CPU, [Source(0.9, 4), Source(0.6, 8), Source(0.3, 12)], 0, marks=pytest.mark.extended("loop: sequential")
        ),
        (GPU, [Source(0.4, 8)], 2),
        pytest.param(GPU, [Source(0.93, 8), Source(0.4, 8)], 3, marks=pytest.mark.extended("loop: sequential")),
    ],
)
def test_the_law_is_close_to_the_best_single_k(plant: Sequential, sources: list[Source], best_k: int) -> None:
    phase = Phase(15, sources)
    single = rate(plant, phase, start=uniform(best_k), is_steered=False)
    assert rate(plant, phase, adapts=True) >= 0.96 * single
