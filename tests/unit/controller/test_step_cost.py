import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.step_cost import WeightedCells, fit_cells

POINTS = st.tuples(st.integers(1, 64), st.integers(0, 7), st.floats(0, 500), st.floats(1e-4, 1.0), st.floats(1e-3, 1.0))


def cells(points: list[tuple[int, int, float, float, float]]) -> WeightedCells:
    """Return a cell for each n, K, positions read to catch up, seconds and weight."""
    n, k, read, seconds, weight = (np.array(column, dtype=np.float64) for column in zip(*points, strict=True))
    return WeightedCells(n, n * (1 + k), k, read, seconds, weight)


@settings(max_examples=40)
@given(st.lists(POINTS, min_size=1, max_size=20))
def test_it_is_monotone_whatever_was_measured(points: list[tuple[int, int, float, float, float]]) -> None:
    fit = fit_cells(cells(points), 1.0)
    m = np.arange(1.0, 600.0)
    assert (np.diff(fit.step_s(8.0, m, 3.0)) >= -1e-12).all()
    assert (np.diff(fit.step_s(8.0, 64.0, np.arange(0.0, 8.0))) >= -1e-12).all()
    assert (np.diff([fit.reading_s(positions) for positions in range(500)]) >= -1e-12).all()
    assert (fit.step_s(8.0, m, 3.0) > 0).all()


def test_what_catching_up_adds_is_told_from_the_rest_of_the_step() -> None:
    points = [(n, k, 0.0, 2e-3 + 1e-4 * n * (1 + k) + 5e-4 * (k > 0)) for n in (2, 8, 24) for k in (0, 2, 7)]
    points += [(n, k, read, s + 1e-3 + 2e-5 * read) for n, k, _, s in points for read in (10.0, 100.0, 300.0)]
    fit = fit_cells(cells([(*point, 1.0) for point in points]), 1.0)
    for read in (10.0, 50.0, 300.0):
        np.testing.assert_allclose(fit.reading_s(read), 1e-3 + 2e-5 * read, rtol=0.05)
    assert fit.reading_s(0.0) == 0.0


def test_of_two_cells_that_disagree_the_one_with_more_weight_is_believed() -> None:
    for heavy_s, light_s in ((1e-2, 2e-2), (2e-2, 1e-2)):
        fit = fit_cells(cells([(8, 3, 0.0, heavy_s, 1.0), (8, 3, 0.0, light_s, 0.01)]), 1.0)
        np.testing.assert_allclose(fit.step_s(8, 32, 3), heavy_s, rtol=0.05)


def test_drift_is_put_on_all_that_was_fitted_without_it() -> None:
    measured = cells([(8, 0, 0.0, 3e-3, 1.0), (8, 3, 0.0, 5e-3, 1.0), (8, 3, 90.0, 6e-3, 1.0)])
    plain, drifted = fit_cells(measured, 1.0), fit_cells(measured, 2.0)
    m = np.arange(1.0, 600.0)
    np.testing.assert_allclose(drifted.step_s(8.0, m, 3.0), 2 * plain.step_s(8.0, m, 3.0))
    np.testing.assert_allclose(drifted.reading_s(90.0), 2 * plain.reading_s(90.0))
