import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specpilot.engine_adapter.law import nnls

SIZE = 6
PROBLEMS, STARTS = st.integers(0, 10_000), st.lists(st.booleans(), min_size=SIZE, max_size=SIZE)


def drawn(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and a target, without a solution that is exact."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(30, SIZE)), rng.normal(size=30)


def solved(rows: np.ndarray, target: np.ndarray, start: np.ndarray) -> np.ndarray:
    return nnls.solve(rows.T @ rows, rows.T @ target, start)


@given(PROBLEMS, STARTS)
def test_it_meets_the_conditions_of_optimality_from_any_start(seed: int, positive: list[bool]) -> None:
    rows, target = drawn(seed)
    start = np.where(positive, np.random.default_rng(seed + 1).exponential(size=SIZE), 0.0)
    x = solved(rows, target, start)
    gradient = rows.T @ (rows @ x - target)
    assert (x >= 0).all()
    assert (gradient >= -1e-6).all()
    np.testing.assert_allclose(gradient[x > 0], 0, atol=1e-6)
    np.testing.assert_allclose(x, solved(rows, target, np.zeros(SIZE)), atol=1e-8)


def test_from_its_own_result_on_it_solves_one_system() -> None:
    rows, target = drawn(3)
    parts: list[int] = []
    result = solved(rows, target, np.zeros(SIZE))
    assert result.any()
    nnls.solve(rows.T @ rows, rows.T @ target, result, lambda: parts.append(1))
    assert len(parts) == 1
