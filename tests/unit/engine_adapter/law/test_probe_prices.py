"""The charge of a probe is the time by which it makes its own step and the next one longer."""

import pytest

from specpilot.engine_adapter.law.graphs import Graphs
from specpilot.engine_adapter.law.prices import KNOTS, PARTS, Coefficients, Prices, StepExtras
from specpilot.engine_adapter.law.probe_prices import ProbePrices
from specpilot.engine_adapter.plan.planner import Planner
from specpilot.engine_adapter.plan.step_plan import StepPlan
from tests.support.k_tables import table
from tests.support.planning import K_MAX, ROWS, UP, accept, decodes, outcome, request

MS = {
    "base": 4.0, "decode": 0.1, "drafter": 1.5, "drafting_decode": 0.05, "slot": 0.02, "reads": 1.2, "read": 0.02,
    "piecewise": 0.3,
}  # fmt: skip
SIZES = (1, 2, 4, *range(8, 513, 8))
GRAPHS = Graphs("FULL_AND_PIECEWISE", SIZES, {1: SIZES})


def prices_of(graphs: Graphs | None = None, narrowest: int = 1, pass_ms: float = 0.0) -> Prices:
    parts = tuple((MS | {"pass": pass_ms}).get(name, 0.0) * 1e-3 for name in PARTS)
    return Prices(Coefficients(parts, (1e-4,) * len(KNOTS)), 256, graphs, narrowest=narrowest)


def seconds(prices: Prices, n: int, verified: int, plan: StepPlan) -> float:
    """Return the seconds of a step that verifies so many tokens, with the drafter's work after it."""
    reads_s = prices.reads_s + prices.read_s * plan.read if plan.read else 0.0
    return prices.step_s(n, verified, plan.slots, plan.width, is_uniform=verified == n) + reads_s


@pytest.mark.parametrize(
    ("n", "graphs", "at_most"), [(4, None, 1.03), (1, None, 1.1), (1, GRAPHS, 1.3), (4, GRAPHS, 1.3), (8, GRAPHS, 1.3)]
)
@pytest.mark.parametrize("accepted", [0, 4])
@pytest.mark.parametrize(("narrowest", "pass_ms"), [(1, 0.0), (K_MAX, 0.0), (1, 1.4)])
def test_a_probe_alone_is_charged_what_it_adds_to_two_steps(
    n: int, graphs: Graphs | None, at_most: float, accepted: int, narrowest: int, pass_ms: float
) -> None:
    prices = prices_of(graphs, narrowest, pass_ms)
    priced = ProbePrices.of(prices, n, K_MAX)
    planner, states = Planner(K_MAX, ROWS, narrowest=narrowest, prices=priced), decodes(*["chat"] * n)
    accept(states, *[0.0] * n)
    for state in states:
        state.drafted_at = 0
    while not any(state.k for state in states):
        before, plan = planner.probes.budget, planner.plan(states, table(0.02, default=UP))
    charged = before + 0.02 - planner.probes.budget
    probing_s, verified = seconds(prices, n, n, plan), n
    for state in states:
        if state.k:
            state.positions = 1 + state.k
            verified += state.k
            outcome(state, accepted)
            state.needs_follow_up = False
    plan = planner.plan(states, table(1e-9, default=UP))
    assert (plan.width, plan.read) == (0, verified - n)
    added = (probing_s + seconds(prices, n, verified, plan)) / prices.plain_s(n) - 2
    assert added <= charged <= at_most * added


@pytest.mark.parametrize("n", [1, 8, 64])
@pytest.mark.parametrize("drafting_decode_ms", [0.0, 0.05])
@pytest.mark.parametrize("least_width", [0, 1])
@pytest.mark.parametrize("one_k", [False, True])
def test_with_a_drafter_that_must_run_in_every_step_probes_take_their_share_at_most(
    n: int, drafting_decode_ms: float, least_width: int, *, one_k: bool
) -> None:
    graphs = Graphs("FULL_AND_PIECEWISE", SIZES, dict.fromkeys((1, 2, 3), SIZES), need_one_k=True) if one_k else None
    prices = Prices(
        Coefficients(
            tuple((MS | {"drafting_decode": drafting_decode_ms, "pass": 0.7}).get(name, 0.0) * 1e-3 for name in PARTS),
            (1e-4,) * len(KNOTS),
        ),
        1024,
        graphs,
        least_width=least_width,
    )
    planner = Planner(K_MAX, 0, least_width=least_width, prices=ProbePrices.of(prices, n, K_MAX), one_k=one_k)
    states = decodes(*["chat"] * n)
    accept(states, *[0.05] * n)
    ratio, steps, added_s, verified, probes = 0.02, 2000, 0.0, n, 0
    usual_s = prices.plain_s(n)
    for _ in range(steps):
        is_uniform = len({state.positions for state in states}) == 1
        plan = planner.plan(states, table(ratio, default=UP))
        added_s += prices.step_s(n, verified, plan.slots, plan.width, is_uniform=is_uniform) - usual_s
        verified = n
        for state in states:
            state.positions = 1 + state.k
            verified += state.k
            if state.k:
                probes += 1
                outcome(state, 0)
    assert probes > 0
    assert not one_k or probes % n == 0
    assert added_s <= ratio * steps * usual_s


@pytest.mark.parametrize("prompts", [1, 8])
def test_a_probe_beside_prompts_is_charged_their_slots_too(prompts: int) -> None:
    n = 4
    prices = prices_of()
    planner, states = Planner(K_MAX, ROWS, prices=ProbePrices.of(prices, n, K_MAX)), decodes(*["chat"] * n)
    accept(states, *[0.0] * n)
    for state in states:
        state.backlog = 900  # so that the prompts are probed first
        state.drafted_at = 0
    new = [request(f"new {number}") for number in range(prompts)]
    for state in new:
        state.positions = 200
    accept(new, *[0.0] * prompts)
    planner.probes.prices = planner.prices
    planner.idle(0.5, 1000.0)
    before = planner.probes.budget
    plan = planner.plan([*states, *new], table(1e-9, default=UP))
    probes = sum(state.k > 0 for state in new)
    charged = before - planner.probes.budget
    assert probes > 0
    drafting_ms = MS["drafter"] + MS["drafting_decode"] * n - MS["reads"] + MS["slot"] * plan.slots
    verifying_ms = MS["reads"] + probes * plan.width * (0.1 + MS["read"])
    added = (drafting_ms + verifying_ms) * 1e-3 / prices.plain_s(n)
    assert added <= charged <= 1.2 * added


def test_a_probe_of_a_long_context_costs_what_its_tokens_read() -> None:
    parts = tuple((MS | {"draft_context": 1e-4}).get(name, 0.0) * 1e-3 for name in PARTS)
    prices = Prices(Coefficients(parts, (1e-4,) * len(KNOTS)), 256, None, StepExtras(context_tokens=500.0))
    probe = ProbePrices.of(prices, 8, K_MAX)
    added = probe.of_draft(0, 4, 4, 50_500) - probe.of_draft(0, 4, 4, 500)
    assert added == pytest.approx(4 * 50_000 * 1e-7 / prices.plain_s(8))
