"""What the engine's law learns of step times."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specpilot.bench.simulation.h200_plant import FULL, FULL_AND_PIECEWISE, H200Plant, graphs
from specpilot.bench.simulation.plant import Work
from specpilot.engine_adapter.evidence.meter import StepShape
from specpilot.engine_adapter.law.price_fit import StepCost, _rounded, features_of, step_s
from specpilot.policy.prices import Prices, StepExtras

RECORDED = json.loads((Path(__file__).parent / "asynchronous_steps.json").read_text())["steps"]
UPDATES, DEVICE = 6, 7


def errors(column: int) -> tuple[float, float]:
    """Median relative error of recorded steps that the fit did not see: of all, and of those with a prompt."""
    cost, found = StepCost(), []
    seen, unseen = RECORDED[0::2], RECORDED[1::2]
    for row in seen:
        cost.note(StepShape(*row[:5]), row[column] / 1000, row[5])
    coefficients = cost.fit()
    assert coefficients is not None
    for row in unseen:
        predicted = step_s(coefficients, features_of(StepShape(*row[:5]), row[5], None))
        found.append((abs(1000 * predicted / row[DEVICE] - 1), row[3] > 0))
    return float(np.median([error for error, _ in found])), float(
        np.median([error for error, prompt in found if prompt])
    )


def test_steps_of_a_real_engine_are_known_better_by_the_device_than_by_the_updates() -> None:
    """By the updates a prompt's time is found at the step before it."""
    (device, device_prompts), (updates, updates_prompts) = errors(DEVICE), errors(UPDATES)
    assert device < 0.75 * updates
    assert device_prompts < 0.5 * updates_prompts


def test_a_machine_that_grows_slower_changes_the_slowdown_factor_first_and_not_the_cost() -> None:
    cost = StepCost()
    for slowdown in [1.0] * 300 + [1.5] * 80:
        cost.note(StepShape(8, 64, 56), 0.010 * slowdown, 800)
    assert cost.slowdown == pytest.approx(1.5, rel=0.1)
    coefficients = cost.fit()
    assert coefficients is not None
    usual_s = step_s(coefficients, features_of(StepShape(8, 64, 56), 800, None))
    assert usual_s == pytest.approx(0.010, rel=0.05)
    assert usual_s * cost.slowdown == pytest.approx(0.015, rel=0.1)


def test_a_host_that_is_slow_again_and_again_does_not_raise_the_slowdown_factor_for_good() -> None:
    """A slow host strikes only the steps that it bounds. Loads that are new meanwhile are averaged in at a wrong level,
    and the loads after them by these: without a return to 1 the factor grows with each episode, here to 3.6.
    """
    cost = StepCost()

    def play(host_n: int, device_n: int, host_slowdown: float) -> None:
        for _ in range(800):
            cost.note(StepShape(host_n, 2 * host_n, host_n), 0.012 * host_slowdown, 0)
            cost.note(StepShape(device_n, 8 * device_n, 7 * device_n), 0.020, 0)

    loads = (2, 4, 8, 16, 32, 64)
    for before, n in zip((1, *loads), loads, strict=False):
        play(n, before, 1.0)
        play(n, n, 1.3)
    assert cost.slowdown < 1.6


def test_a_pause_is_no_cost() -> None:
    cost = StepCost()
    for at in range(400):
        cost.note(StepShape(8, 8, 0), 0.2 if at % 50 == 49 else 0.005, 800)
    coefficients = cost.fit()
    assert coefficients is not None
    assert step_s(coefficients, features_of(StepShape(8, 8, 0), 800, None)) == pytest.approx(0.005, rel=0.1)


@pytest.mark.parametrize("mode", [FULL, FULL_AND_PIECEWISE])
def test_steps_of_the_h200_that_were_not_seen_are_predicted(mode: str) -> None:
    plant = H200Plant(graphs(mode, lengths=(1, 2, 4, 8), largest=1024))
    cost = StepCost(plant.graphs)

    def took(shape: StepShape) -> float:
        work = Work(shape.decodes, shape.verified, shape.slots, is_uniform=shape.is_uniform)
        return max(plant.device_s(work), plant.host_s(work))

    for n in (1, 2, 4, 8, 16, 32, 64, 128):
        for k in (0, 3, 7):
            shape = StepShape(n, n * (1 + k), n * k)
            mixed = StepShape(n, n + (n // 2) * (k + 1), n * k, is_uniform=False)
            for _ in range(25):
                cost.note(shape, took(shape), 0)
                if n > 1 and k:
                    cost.note(mixed, took(mixed), 0)
    coefficients = cost.fit()
    assert coefficients is not None
    prices, found = Prices(coefficients, 2048, plant.graphs, StepExtras()), []
    for n in (3, 12, 24, 48, 96):
        for k in (0, 1, 3, 7):
            shape = StepShape(n, n * (1 + k), n * k)
            found.append(abs(prices.step_s(n, n * (1 + k), n * k, is_uniform=True) / took(shape) - 1))
    assert np.median(found) <= 0.08
    assert max(found) <= 0.3


@given(st.integers(0, 100_000))
def test_the_grid_of_cells_rounds_down_by_less_than_a_fifth(count: int) -> None:
    assert _rounded(count) <= count
    assert count - _rounded(count) <= count / 5
    assert _rounded(_rounded(count)) == _rounded(count)


def test_the_grid_bounds_the_number_of_cells() -> None:
    assert len({_rounded(count) for count in range(1, 4097)}) <= 45
