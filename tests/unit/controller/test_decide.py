from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.decide import Demand, choose, evaluate, grid
from controller.step_cost import KNOTS, StepCost
from policy.types import Objective

DEPTH = 4


def linear(base: float, per_decode: float, slope: float, jump: float, per_slot: float) -> StepCost:
    edges = np.append(KNOTS, 1e7)
    return StepCost(base, per_decode, jump, jump / 4, per_slot, slope * edges)


def bent(base: float, slopes: list[float], jump: float) -> StepCost:
    edges = np.append(KNOTS, 1e7)
    per_segment = np.resize(np.array(slopes), len(edges) - 1)
    return StepCost(base, 0.0, jump, 0.0, 0.0, np.concatenate([[0.0], np.cumsum(per_segment * np.diff(edges))]))


costs = st.builds(
    linear, st.floats(1e-4, 0.05), st.floats(0, 1e-3), st.floats(0, 1e-3), st.floats(0, 0.01), st.floats(0, 1e-4)
)
hazards = st.lists(st.floats(0.05, 0.99), min_size=DEPTH, max_size=DEPTH)


@st.composite
def demands(draw: st.DrawFn, *, slo: bool = False) -> list[Demand]:
    count = draw(st.integers(1, 3))
    parts = [draw(st.floats(0.05, 1.0)) for _ in range(count)]
    found = []
    for index, part in enumerate(parts):
        low = draw(st.integers(0, DEPTH))
        found.append(
            Demand(
                f"class{index}",
                part / sum(parts),
                np.cumprod(draw(hazards)),
                draw(st.floats(0.1, 10)),
                low,
                draw(st.integers(low, DEPTH)),
                draw(st.none() | st.floats(1e-4, 0.1)) if slo else None,
            )
        )
    return found


def best_score(found: list[Demand], n: float, cost: StepCost, objective: Objective) -> float:
    every = np.array(list(product(*(range(item.k_min, item.k_max + 1) for item in found))))
    return float(evaluate(found, np.full(len(every), n), every, cost, objective).score.max())


@given(demands(), st.integers(2, 64), costs)
def test_goodput_is_the_exact_optimum_for_a_linear_cost(found: list[Demand], n: int, cost: StepCost) -> None:
    rows = np.array([float(n)])
    chosen = choose(found, rows, cost)
    score = evaluate(found, rows, chosen, cost, Objective.GOODPUT).score[0]
    assert score >= best_score(found, n, cost, Objective.GOODPUT) * (1 - 1e-9)


@settings(max_examples=60)
@given(
    demands(slo=True),
    st.integers(2, 64),
    st.builds(bent, st.floats(1e-3, 0.02), st.lists(st.floats(0, 2e-3), min_size=1, max_size=6), st.floats(0, 0.01)),
    st.sampled_from(Objective),
)
def test_it_stays_close_to_the_optimum_for_any_cost_slo_and_objective(
    found: list[Demand], n: int, cost: StepCost, objective: Objective
) -> None:
    rows = np.array([float(n)])
    score = evaluate(found, rows, choose(found, rows, cost, objective), cost, objective).score[0]
    best = best_score(found, n, cost, objective)
    if best > 0 and score > 0:
        assert score >= 0.9 * best


@given(demands(), st.integers(1, 300), costs)
def test_bounds_hold(found: list[Demand], n: int, cost: StepCost) -> None:
    chosen = choose(found, grid(n), cost)
    for column, item in enumerate(found):
        assert chosen[:, column].min() >= item.k_min
        assert chosen[:, column].max() <= item.k_max


def test_one_running_decode_is_never_a_mixture() -> None:
    cost = linear(2e-3, 0.0, 1e-4, 6e-4, 3e-5)
    code = Demand("code", 0.5, np.cumprod([0.9] * 7), k_max=7)
    chat = Demand("chat", 0.5, np.cumprod([0.3] * 7), k_max=7)
    both = choose([code, chat], np.array([1.0]), cost)[0]
    assert [int(k) for k in both] == [int(choose([item], np.array([1.0]), cost)[0, 0]) for item in (code, chat)]


def test_an_slo_forbids_the_best_goodput() -> None:
    cost = linear(2e-3, 0.0, 1e-4, 6e-4, 0.0)
    rows = np.array([16.0])
    chat = Demand("chat", 0.5, np.cumprod([0.2] * 7), k_max=7)
    code = Demand("code", 0.5, np.cumprod([0.97] * 7), k_max=7)
    free = evaluate([code, chat], rows, choose([code, chat], rows, cost), cost, Objective.GOODPUT)
    bound_s = 0.9 * float(free.step_s[0])
    strict = Demand("chat", 0.5, chat.survival, k_max=7, itl_slo_s=bound_s)
    chosen = choose([code, strict], rows, cost)
    found = evaluate([code, strict], rows, chosen, cost, Objective.GOODPUT)
    assert found.step_s[0] / (1 + strict.survival[: chosen[0, 1]].sum()) <= bound_s
    assert found.goodput[0] < free.goodput[0]


def test_where_no_choice_meets_the_slo_the_nearest_is_taken() -> None:
    cost = linear(2e-3, 0.0, 1e-4, 6e-4, 0.0)
    item = Demand("chat", 1.0, np.cumprod([0.2] * 7), k_max=7, itl_slo_s=1e-6)
    assert choose([item], np.array([16.0]), cost)[0, 0] == 0


@pytest.mark.parametrize("top", [1, 5, 32, 33, 256, 1000])
def test_the_grid_reaches_from_1_to_the_largest(top: int) -> None:
    points = grid(top)
    assert points[0] == 1
    assert points[-1] == top
    assert (np.diff(points) > 0).all()
