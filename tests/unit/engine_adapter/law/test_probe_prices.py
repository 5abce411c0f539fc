"""The charge of a probe is the time by which it makes its own step and the next one longer."""

import pytest

from specpilot.engine_adapter.law.probe_prices import ProbePrices
from specpilot.engine_adapter.plan.planner import Planner
from specpilot.policy.prices import KNOTS, PARTS, Coefficients, Prices
from tests.support.k_tables import table
from tests.support.planning import K_MAX, ROWS, UP, accept, decodes, outcome

MS = {"base": 4.0, "decode": 0.1, "drafter": 1.5, "drafting_decode": 0.05, "slot": 0.02, "reads": 2.0, "read": 0.02}
PRICES = Prices(Coefficients(tuple(MS.get(name, 0.0) * 1e-3 for name in PARTS), (1e-4,) * len(KNOTS)), 256)


@pytest.mark.parametrize("accepted", [0, 4])
def test_a_probe_alone_is_charged_what_it_adds_to_two_steps(accepted: int) -> None:
    n = 4
    planner, states = Planner(K_MAX, ROWS, prices=ProbePrices.of(PRICES, n)), decodes(*["chat"] * n)
    accept(states, *[0.0] * n)
    for state in states:
        state.drafted_at = 0
    while not any(state.k for state in states):
        before, plan = planner.probes.budget, planner.plan(states, table(0.02, default=UP))
    charged = before + 0.02 - planner.probes.budget
    probes, verified = [state for state in states if state.k], n
    for state in probes:
        state.positions = 1 + state.k
        verified += state.k
        outcome(state, accepted)
        state.needs_follow_up = False
    probing_s = PRICES.step_s(n, n, plan.slots) + PRICES.reads_s + PRICES.read_s * plan.read
    plan = planner.plan(states, table(1e-9, default=UP))
    assert (plan.width, plan.read) == (0, verified - n)
    verifying_s = PRICES.step_s(n, verified, 0) + PRICES.reads_s + PRICES.read_s * plan.read
    added = (probing_s + verifying_s) / PRICES.plain_s(n) - 2
    assert added <= charged <= 1.03 * added
