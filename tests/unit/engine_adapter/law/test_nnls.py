import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specpilot.engine_adapter.law import nnls


@given(st.integers(0, 10_000))
def test_it_meets_the_conditions_of_optimality(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(30, 6))
    target = rng.normal(size=30)
    x = nnls.solve(rows, target)
    gradient = rows.T @ (rows @ x - target)
    assert (x >= 0).all()
    assert (gradient >= -1e-6).all()
    np.testing.assert_allclose(gradient[x > 0], 0, atol=1e-6)
