"""What the engine's law learns of step times."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specpilot.engine_adapter.evidence.meter import StepShape
from specpilot.engine_adapter.law import price_fit
from specpilot.engine_adapter.law.price_fit import StepCost, _rounded, features_of, step_s
from specpilot.engine_adapter.law.prices import EDGES, KNOTS, PARTS, Coefficients, Prices, StepExtras
from specpilot.engine_adapter.plan.planner import Planner
from tests.simulation.h200_plant import FULL, FULL_AND_PIECEWISE, H200Plant, graphs
from tests.simulation.plant import Sequential, Work
from tests.simulation.step_times import cpu_catch_up_s, cpu_step_s

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


def test_a_pass_of_a_sequential_drafter_costs_the_same_for_few_requests_as_for_all() -> None:
    """Known from steps in which all decodes have one K, as after a calibration."""
    cost, plant = StepCost(), Sequential(cpu_step_s, cpu_catch_up_s, pass_s=1.3e-3, row_s=2e-5)

    def took(n: int, drafted: int, k: int) -> float:
        return plant.device_s(Work(n, n + drafted * k, drafted * k, is_uniform=drafted == n, width=k))

    for n in (1, 2, 4, 8, 16, 32):
        for k in (0, 1, 2, 3):
            for _ in range(25):
                cost.note(StepShape(n, n * (1 + k), n * k, passes=max(0, k - 1)), took(n, n, k), 0)
    coefficients = cost.fit()
    assert coefficients is not None
    prices = Prices(coefficients, 128)
    for n, drafted, k in ((8, 6, 3), (8, 2, 3), (16, 4, 2), (32, 3, 3)):
        predicted = prices.step_s(n, n + drafted * k, prices.slots(n, k, drafted), k)
        assert predicted == pytest.approx(took(n, drafted, k), rel=0.07)


@pytest.mark.parametrize("k_max", [3, 7])
def test_passes_that_every_step_makes_are_no_price_of_a_large_k(k_max: int) -> None:
    """The drafter of a rank in lockstep makes all of them at any K: in a share of their time K = 0 seemed cheaper."""
    planner, cost = Planner(k_max, 0, least_width=k_max, narrowest=k_max, in_lockstep=True), StepCost()

    def took(n: int, k: int) -> float:
        return 0.008 + 2e-5 * n * (1 + k)

    for n in (1, 2, 4, 8, 16, 32):
        for k in (0, 1, k_max):
            shape = StepShape(n, n * (1 + k), n * k_max, passes=planner.further_passes(k_max))
            for _ in range(25):
                cost.note(shape, took(n, k), 0)
    coefficients = cost.fit()
    assert coefficients is not None
    prices = Prices(coefficients, 256, least_width=k_max, narrowest=k_max)
    for n in (1, 8, 32):
        for k in (0, 1, k_max):
            predicted = prices.step_s(n, n * (1 + k), prices.slots(n, k, n), k, is_uniform=True)
            assert predicted == pytest.approx(took(n, k), rel=0.004)


@given(st.integers(0, 100_000))
def test_the_grid_of_cells_rounds_down_by_less_than_a_fifth(count: int) -> None:
    assert _rounded(count) <= count
    assert count - _rounded(count) <= count / 5
    assert _rounded(_rounded(count)) == _rounded(count)


def test_the_grid_bounds_the_number_of_cells() -> None:
    assert len({_rounded(count) for count in range(1, 4097)}) <= 45


def drawn_steps(draw: random.Random, count: int) -> list[tuple[StepShape, float, int]]:
    """Steps of an engine whose load changes, with noise."""
    steps = []
    for _ in range(count):
        n, k = draw.choice((1, 2, 3, 5, 8, 12, 20, 32, 50, 80, 120, 256)), draw.choice((0, 0, 1, 2, 3, 5, 7))
        prefill, read = draw.choice((0, 0, 90, 500)), draw.choice((0, 0, 40, 300))
        seconds = 4e-3 + 3e-5 * (n * (1 + k) + prefill) + (k > 0) * (2e-3 + 1e-5 * n * k) + 1e-6 * read
        steps.append((StepShape(n, n * (1 + k), n * k, prefill, read), seconds * draw.uniform(0.9, 1.1), 300 * n))
    return steps


def equations(cost: StepCost) -> tuple[np.ndarray, np.ndarray]:
    """The rows and the target of the least squares that the module describes, from all cells of `cost`."""
    cells = list(cost._cells.values())
    parts, tokens = np.split(np.array([cell.features for cell in cells]), [len(PARTS)], axis=1)
    columns = np.hstack([parts, np.clip(tokens - KNOTS, 0.0, np.diff(EDGES))])
    seconds, steps = np.array([(cell.seconds, cell.steps) for cell in cells]).T
    size = np.sqrt(steps / (steps + price_fit._HALF_WEIGHT))
    typical_s = float(np.average(seconds, weights=size))
    widths = np.sqrt(price_fit._SMOOTHNESS) * np.minimum(np.diff(EDGES), tokens.max() + 1.0) / typical_s
    smooth = [
        [width * ((at == slope) - (at == slope + 1)) for at in range(columns.shape[1])]
        for slope, width in enumerate(widths[:-1], start=len(PARTS))
    ]
    largest, weights = np.maximum(columns.max(axis=0), 1e-12) / typical_s, price_fit._RIDGE_WEIGHTS.copy()
    if cost.has_long:
        weights[price_fit._CONTEXT] = price_fit._LONG_CONTEXT_WEIGHT
    else:
        columns[:, price_fit._OF_DRAFTS] = 0.0
    ridge = np.diag(np.sqrt(price_fit._RIDGE) * largest * weights)
    rows = np.vstack([columns * (size / seconds)[:, None], smooth, ridge])
    return rows, np.concatenate([size, np.zeros(len(rows) - len(size))])


@pytest.mark.parametrize("has_long", [False, True])
@pytest.mark.parametrize("most_cells", [40, price_fit.CELLS])
def test_a_fit_is_the_least_squares_of_all_cells_however_many_fits_came_before(
    most_cells: int, has_long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where new cells take the places of those that were dropped."""
    monkeypatch.setattr(price_fit, "CELLS", most_cells)
    draw, cost, at_once = random.Random(2), StepCost(), StepCost()
    cost.has_long = at_once.has_long = has_long
    for _ in range(30):
        for step in drawn_steps(draw, draw.choice((0, 3, 80))):
            cost.note(*step)
            at_once.note(*step)
        cost.fit()
    assert len(cost._cells) == 40 if most_cells == 40 else len(cost._cells) > 60
    found, other = cost.fit(), at_once.fit()
    assert found is not None
    assert other is not None
    rows, target = equations(cost)
    scale = np.linalg.norm(rows, axis=0)
    prices = np.array(found.parts + found.slopes) * scale
    gradient = (rows / scale).T @ ((rows / scale) @ prices - target)
    assert (prices >= 0).all()
    assert (gradient >= -1e-6).all()
    np.testing.assert_allclose(gradient[prices > 0], 0, atol=1e-6)
    np.testing.assert_allclose(prices, np.array(other.parts + other.slopes) * scale, atol=1e-6)


FITS = """
import random, time
from specpilot.engine_adapter.law.price_fit import CELLS, StepCost
from tests.unit.engine_adapter.law.test_price_fit import drawn_steps

draw, cost = random.Random(2), StepCost()
own = others = 0.0
for step in drawn_steps(draw, 6000):
    cost.note(*step)
for _ in range(60):
    for step in drawn_steps(draw, 80):
        cost.note(*step)
    process, thread = time.process_time(), time.thread_time()
    cost.fit()
    thread = time.thread_time() - thread
    own += thread
    others += time.process_time() - process - thread
assert len(cost._cells) == CELLS
print(others / own)
"""


def test_a_fit_uses_no_threads_of_blas() -> None:
    """They would spin on all cores of the engine's process. The time is that of the processor."""
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "16"}
    ran = subprocess.run([sys.executable, "-c", FITS], capture_output=True, text=True, env=environment, check=True)
    assert float(ran.stdout) < 0.1


KERNELS = pytest.mark.parametrize(("once", "verifying", "each"), [(4e-8, 0, 0), (4e-8, 3e-7, 0), (2e-8, 0, 2e-8)])
"""A context is read once; or more slowly in steps that verify; or anew by each token. Seconds per token of context."""


def step(n: int, k: int, long: int, k_long: int) -> tuple[StepShape, int]:
    """`n` decodes of 300 tokens beside a `long` one."""
    contexts, ks = [300] * n + [long], [k] * n + [k_long]
    drafts = sum(length * drafted for length, drafted in zip(contexts, ks, strict=True))
    slots = max(ks) * sum(drafted > 0 for drafted in ks)
    return StepShape(n + 1, n + 1 + sum(ks), slots, 0, 0, k == k_long, drafts), sum(contexts)


def read_s(shape: StepShape, context: int, once: float, verifying: float, each: float) -> float:
    plain = 5e-3 + 2e-5 * shape.verified + (1e-3 + 1e-5 * shape.slots if shape.slots else 0.0)
    return plain + context * (once + verifying * (shape.verified > shape.decodes)) + each * shape.draft_context


def fitted(
    kernel: tuple[float, float, float], kinds: Sequence[tuple[int, int, int]], *, has_long: bool
) -> Coefficients:
    """The prices after steps of several loads with these K of the short ones, lengths of the long one and its K."""
    cost, draw = StepCost(), random.Random(3)
    cost.has_long = has_long
    for n in (1, 3, 7, 15, 31):
        for kind in kinds:
            shape, context = step(n, *kind)
            for _ in range(20):
                cost.note(shape, read_s(shape, context, *kernel) * draw.uniform(0.99, 1.01), context)
    found = cost.fit()
    assert found is not None
    return found


SHORT = [(0, 300, 0), (3, 300, 3), (7, 300, 7)]


@KERNELS
def test_the_fit_tells_what_a_kernel_does_with_a_context(once: float, verifying: float, each: float) -> None:
    kernel = once, verifying, each
    found = fitted(kernel, [*SHORT, (0, 8000, 0), (3, 8000, 3), (7, 8000, 7)], has_long=True)
    for n, k, k_long, long in ((15, 0, 0, 100_000), (15, 5, 5, 100_000), (15, 7, 0, 100_000), (7, 3, 7, 50_000)):
        shape, context = step(n, k, long, k_long)
        predicted = step_s(found, features_of(shape, context, None))
        assert predicted == pytest.approx(read_s(shape, context, *kernel), rel=0.15), (n, k, k_long)


@KERNELS
def test_while_each_step_with_a_long_context_verifies_k_0_does_not_seem_dearer_than_it_is(
    once: float, verifying: float, each: float
) -> None:
    """Else it would never be tried, nor would its cost become known."""
    found, (shape, context) = (
        fitted((once, verifying, each), [*SHORT, (7, 80_000, 7)], has_long=True),
        step(15, 0, 80_000, 0),
    )
    predicted = step_s(found, features_of(shape, context, None))
    assert predicted < 1.02 * read_s(shape, context, once, verifying, each)


def test_before_a_long_context_was_seen_drafts_have_no_price_for_contexts() -> None:
    prices = dict(zip(PARTS, fitted((4e-8, 3e-7, 2e-8), SHORT, has_long=False).parts, strict=True))
    assert prices["verifying_context"] == prices["draft_context"] == 0.0


def test_a_choice_sees_the_seconds_that_the_fit_found_for_contexts() -> None:
    parts = {"base": 5e-3, "context": 1e-8, "verifying_context": 2e-8, "draft_context": 3e-8}
    coefficients = Coefficients(tuple(parts.get(name, 0.0) for name in PARTS), (1e-5,) * len(KNOTS))
    for graph in (None, graphs(FULL)):
        prices = Prices(coefficients, 64, graph, StepExtras(context_tokens=1000.0))
        for k in (0, 1, 3):
            shape = StepShape(4, 4 * (1 + k), 0, draft_context=4 * k * 1000)
            whole_s = step_s(coefficients, features_of(shape, 4000, graph))
            assert prices.step_s(4, 4 * (1 + k), 0, is_uniform=True) == pytest.approx(whole_s)
            if k:
                mixed_s = prices.steps_s(4, np.array([4 * (1 + k)]), np.array([0]), np.array([k]))[0]
                assert mixed_s + prices.uniform_extra_s(4, 3)[k] == pytest.approx(whole_s)
