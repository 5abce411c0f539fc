from collections.abc import Callable

import numpy as np
import pytest

from specpilot.bench.simulation.step_times import concave_step_s, cpu_step_s, demo_pair_step_s, gpu_step_s
from specpilot.controller.estimation.step_cost import StepCost, fit_cells

Truth = Callable[[float, float, float, float, float], float]


def points() -> np.ndarray:
    """Typical cells of an engine: [cells, COLUMNS]."""
    rng = np.random.default_rng(1)
    found = []
    for n in (2, 4, 8, 12, 16, 24, 32):
        for k in (0, 1, 2, 4, 7):
            for drafted in (n, n // 2):
                prefill = float(rng.choice([0, 0, 0, 64, 256]))
                found.append((n, n + drafted * k, drafted * k, n * rng.uniform(100, 900), prefill, 0.0))
    return np.array(found)


def fitted(truth: Truth, means: np.ndarray) -> StepCost:
    seconds = np.array([truth(n, m, d, p, x) for n, m, d, x, p, _ in means])
    return fit_cells(means, seconds, np.ones(len(means)))


@pytest.mark.parametrize("truth", [cpu_step_s, gpu_step_s, concave_step_s])
def test_steps_that_it_was_not_fitted_on_are_predicted(truth: Truth) -> None:
    every = points()
    cost = fitted(truth, every[::2])
    errors = [
        abs(float(cost.step_s(n, m, d, prefill=p, context=x)) / truth(n, m, d, p, x) - 1)
        for n, m, d, x, p, _ in every[1::2]
    ]
    assert np.median(errors) <= 0.03
    assert max(errors) <= 0.25


@pytest.mark.parametrize("truth", [cpu_step_s, gpu_step_s])
def test_it_never_falls_with_what_a_step_is_given_to_do(truth: Truth) -> None:
    cost = fitted(truth, points())
    verified = np.arange(8.0, 400.0)
    assert (np.diff(cost.step_s(8.0, verified, 0.0)) >= 0).all()
    assert (np.diff(cost.step_s(8.0, 64.0, np.arange(0.0, 100.0))) >= 0).all()
    assert (np.diff(cost.step_s(8.0, 64.0, 8.0, prefill=np.arange(0.0, 1000.0, 50.0))) >= 0).all()


def test_prefilled_tokens_fill_the_processor_for_verified_ones_too() -> None:
    """On the GPU 64 more tokens cost almost nothing in a small step, but not in one that prefills."""
    cost = fitted(gpu_step_s, points())
    alone = float(cost.step_s(8.0, 72.0, 0.0) - cost.step_s(8.0, 8.0, 0.0))
    beside = float(cost.step_s(8.0, 72.0, 0.0, prefill=256.0) - cost.step_s(8.0, 8.0, 0.0, prefill=256.0))
    assert beside > 3 * alone


def test_the_drafter_is_charged_by_the_chance_that_it_runs() -> None:
    cost = fitted(cpu_step_s, points())
    rarely = float(cost.step_s(8.0, 8.0, 0.0, drafts=0.25) - cost.step_s(8.0, 8.0, 0.0, drafts=0.0))
    assert rarely == pytest.approx(0.25 * (cost.drafter_s + 8 * cost.drafting_per_decode_s))


def test_a_step_that_drafts_for_few_costs_the_others_too() -> None:
    """On the demo pair a step of 24 that drafts for one takes 1.7 times as long as one without drafts."""
    every = points()
    cost = fitted(demo_pair_step_s, every[::2])
    for n in (8, 16, 24, 32):
        x = 300.0 * n
        ratio = cost.step_s(n, n + 7, 7, context=x) / cost.step_s(n, n, 0, context=x)
        assert float(ratio) == pytest.approx(
            demo_pair_step_s(n, n + 7, 7, 0.0, x) / demo_pair_step_s(n, n, 0, 0.0, x), rel=0.06
        )


def test_described_is_plain_data_of_every_coefficient() -> None:
    described = fitted(cpu_step_s, points()).described()
    assert all(isinstance(value, float | dict) for value in described.values())
    assert {"per_slot_s", "per_prefill_s", "per_context_s", "left_s"} <= set(described)
