"""A GPU whose steps are padded to captured sizes and lose their graph beyond the largest: what the law makes of it."""

from typing import Any

import numpy as np
import pytest

from specpilot.engine_adapter.evidence.meter import StepShape
from specpilot.engine_adapter.law.graphs import Graphs
from specpilot.engine_adapter.law.price_fit import StepCost
from specpilot.engine_adapter.law.prices import Prices, StepExtras
from tests.closed_loop.single_k import best_single_k, of_single_k
from tests.simulation.engine import K_MAX
from tests.simulation.graph_plant import GRAPHS, graph_step_s
from tests.simulation.loop import simulate
from tests.simulation.traffic import Phase, Source

SETTLE_S = 8
SEEDS = range(3)
NOISE = 0.005
REPLY_TOKENS = 600.0
"""Long enough that most steps read no prompt: the cliffs are those of steps that only decode."""


def took(n: int, k: int) -> float:
    return graph_step_s(n, n * (1 + k), n * k, 0, 300 * n)


SEEN = [(n, k) for n in (1, 2, 4, 8, 16, 24, 33, 48, 64, 65, 72, 96, 130) for k in (0, 2, 5, 7)]
UNSEEN = [(n, k) for n in (3, 6, 12, 20, 40, 56, 63, 66, 80, 110) for k in (0, 1, 3, 4, 6, 7)]


def fitted(graphs: Graphs | None) -> Prices:
    """Prices learned from steps with one K for all."""
    cost = StepCost(graphs)
    for n, k in SEEN:
        for _ in range(50):
            cost.note(StepShape(n, n * (1 + k), n * k), took(n, k), 300 * n)
    coefficients = cost.fit()
    assert coefficients is not None
    return Prices(coefficients, 256 * (1 + K_MAX), graphs, StepExtras(context_tokens=300.0))


def predicted(prices: Prices, n: int, k: int) -> float:
    return prices.step_s(n, n * (1 + k), n * k, is_uniform=True)


def errors(graphs: Graphs | None) -> list[float]:
    prices = fitted(graphs)
    return [abs(predicted(prices, n, k) / took(n, k) - 1) for n, k in UNSEEN]


def test_steps_that_it_was_not_fitted_on_are_predicted_across_the_cliffs() -> None:
    with_graphs, without = errors(GRAPHS), errors(None)
    assert np.median(with_graphs) <= 0.01 < np.median(without)
    assert max(with_graphs) <= 0.05 < max(without)


def test_k_max_may_be_cheaper_than_less_and_one_request_more_may_cost_a_step() -> None:
    prices = fitted(GRAPHS)
    assert took(2, K_MAX) < took(2, K_MAX - 1)
    assert predicted(prices, 2, K_MAX) < predicted(prices, 2, K_MAX - 1)
    more = predicted(prices, 65, K_MAX) - predicted(prices, 64, K_MAX)
    assert more == pytest.approx(took(65, K_MAX) - took(64, K_MAX), rel=0.3)


GPU: Any = {
    "step_s": graph_step_s,
    "noise": NOISE,
    "max_num_seqs": 256,
    "graphs": GRAPHS,
    "reply_tokens": REPLY_TOKENS,
}


def throughput(acceptance: float, running: int, seed: int) -> float:
    """The law at one load."""
    return simulate([Phase(20, [Source(acceptance, running)])], seed=seed, **GPU).throughput(0, SETTLE_S)


def best_single(acceptance: float, running: int) -> float:
    """The throughput of the best single K, which one seed finds among all of them."""
    phase = Phase(20, [Source(acceptance, running)])
    _, best = best_single_k(phase, **GPU)
    return float(np.mean([of_single_k(phase, best, seed=seed, **GPU) for seed in SEEDS]))


@pytest.mark.parametrize(
    ("acceptance", "running"), [(0.3, 2), pytest.param(0.95, 64, marks=pytest.mark.extended("loop: at a cliff"))]
)
def test_regret_is_small_at_cliffs(acceptance: float, running: int) -> None:
    """Against the best single K, found by trying all of them; what probes and learning cost is in it."""
    best = best_single(acceptance, running)
    assert np.mean([throughput(acceptance, running, seed) for seed in SEEDS]) >= 0.98 * best


@pytest.mark.extended("loop: beyond a cliff")
@pytest.mark.parametrize(("acceptance", "running"), [(0.95, 37), (0.95, 66), (0.8, 74)])
def test_regret_just_beyond_a_cliff_is_bounded(acceptance: float, running: int) -> None:
    best = best_single(acceptance, running)
    regrets = [1 - throughput(acceptance, running, seed) / best for seed in SEEDS]
    assert np.mean(regrets) <= 0.03
    assert max(regrets) <= 0.045
