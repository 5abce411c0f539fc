import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specpilot.controller.estimation.t_interval import central_probability, interval, quantile

TABLE = {  # P(T > t), degrees: t, from printed tables
    (0.05, 1): 6.314, (0.025, 2): 4.303, (0.025, 3): 3.182, (0.05, 4): 2.132, (0.005, 5): 4.032, (0.01, 10): 2.764,
    (0.025, 30): 2.042, (0.0005, 30): 3.646, (0.05, 120): 1.658,
}  # fmt: skip


@pytest.mark.parametrize(("tail", "degrees"), TABLE)
def test_the_quantiles_of_printed_tables(tail: float, degrees: int) -> None:
    assert quantile(tail, degrees) == pytest.approx(TABLE[tail, degrees], abs=6e-4)


def test_many_degrees_are_the_normal_distribution_but_for_a_hundredth() -> None:
    assert 1.95996 < quantile(0.025, 10_000) < 1.95996 * 1.01


@given(st.floats(0.0005, 0.49), st.integers(1, 200))
def test_the_quantile_inverts_the_probability(tail: float, degrees: int) -> None:
    assert central_probability(quantile(tail, degrees), degrees) == pytest.approx(1 - 2 * tail, abs=1e-9)


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=40), st.floats(0.001, 0.4))
def test_the_interval_holds_its_mean_and_narrows_with_the_error(values: list[float], tail: float) -> None:
    wide, narrow = interval(values, tail / 2), interval(values, tail)
    assert wide.low <= narrow.low <= narrow.mean <= narrow.high <= wide.high
    assert math.isclose(narrow.mean, sum(values) / len(values), abs_tol=1e-9)


def test_each_bound_errs_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    found = [interval(list(rng.normal(size=5)), 0.05) for _ in range(4000)]
    assert np.mean([item.low > 0 for item in found]) == pytest.approx(0.05, abs=0.011)
    assert np.mean([item.high < 0 for item in found]) == pytest.approx(0.05, abs=0.011)
