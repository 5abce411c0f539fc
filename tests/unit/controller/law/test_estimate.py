"""The estimate's K at every load, and which engine stands for its pool."""

import numpy as np

from specpilot.controller.estimation.observation import Evidence
from specpilot.controller.law.context import PoolContext
from specpilot.controller.law.estimate import Estimate, Mix, representative
from specpilot.policy.bands import BANDS
from specpilot.policy.choice import Group, step_of
from specpilot.policy.graphs import Graphs
from specpilot.policy.model_policy import Policy
from specpilot.policy.prices import KNOTS, PARTS, Coefficients, PriceList
from specpilot.policy.schedule import k_at

K_MAX, RUNNING = 7, 32
PRICES = {"base": 5e-3, "drafter": 2e-3, "slot": 5e-5, "piecewise": 8e-3, "graphless": 9e-3}
"""Seconds. A step without a FULL graph takes almost twice as long."""
GRAPHS = Graphs("FULL_AND_PIECEWISE", (1, 2, 4, 8, 16, 32), {2: tuple(range(2, 65, 2)), 8: tuple(range(8, 49, 8))}, ())
"""K = 7 has its graph up to 6 decodes, and K = 1 at every load."""


def test_with_graphs_the_estimate_compares_all_widths_at_each_load() -> None:
    price_list = PriceList(Coefficients(tuple(PRICES.get(part, 0.0) for part in PARTS), (2e-5,) * len(KNOTS)))
    mix = Mix({("default", 0): 80.0}, 10.0, price_list)
    lengths = np.array([[sum(0.8**k for k in range(depth + 1)) for depth in range(K_MAX + 1)]] * BANDS)
    context = PoolContext("m", "p", Policy("m"), K_MAX, 3, RUNNING, None, graphs=GRAPHS)
    n = np.arange(1.0, RUNNING + 1)
    row = Estimate(context, mix, lengths).rows()["default:0"]
    prices = price_list.prices(RUNNING * (1 + K_MAX), GRAPHS)
    groups = [[Group(int(decodes), 0, 1.0, 0, K_MAX)] for decodes in n]
    steps = np.array([[step_of(group, lengths, prices, [k]) for k in range(K_MAX + 1)] for group in groups])
    rates = steps[..., 0] / steps[..., 1]
    best = rates.argmax(axis=1)
    assert {best[5], best[6]} == {7, 1}  # the best width jumps
    assert [k_at(row, int(decodes)) for decodes in n] == best.tolist()


def test_an_engine_that_runs_nothing_any_more_does_not_stand_for_its_pool() -> None:
    price_list = PriceList(Coefficients((0.0,) * len(PARTS), (2e-5,) * len(KNOTS)))
    mixes = {"idle": Mix({("default", 0): 80.0}, 10.0, price_list), "busy": Mix({("default", 0): 10.0}, 10.0)}
    assert representative(mixes) is mixes["idle"]
    for _ in range(20):
        mixes["idle"].add(Evidence(), 1.0, price_list)
        mixes["busy"].add(Evidence(drafts={("default", 0, 3): 10.0}), 1.0, price_list)
    assert representative(mixes) is mixes["busy"]
    assert mixes["idle"].running == 0.0
