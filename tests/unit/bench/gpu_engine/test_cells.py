"""The measured cells, the measurements that count, and their summaries."""

from typing import Any

import pytest

from specpilot.bench.gpu_engine.cells import HALVES, RANDOM, UNIFORM, Cell, cells, disputed, stock, summaries, untypical


def test_mixed_batches_verify_as_many_tokens_as_the_uniform_one_beside_them() -> None:
    found = cells([1, 8], [0, 7], 7)
    assert [cell for cell in found if cell.running == 1] == [Cell(UNIFORM, 1, (0,)), Cell(UNIFORM, 1, (7,))]
    beside = [cell for cell in found if cell.running == 8]
    assert beside == [
        Cell(UNIFORM, 8, (0,)), Cell(UNIFORM, 8, (7,)), Cell(HALVES, 8, (0, 6)), Cell(HALVES, 8, (1, 5)),
        Cell(RANDOM, 8, (0, 2, 4, 6)), Cell(UNIFORM, 8, (3,)),
    ]  # fmt: skip


@pytest.mark.parametrize("k_max", range(1, 9))
def test_mixed_batches_of_any_head_have_one_mean(k_max: int) -> None:
    found = cells([8], [0], k_max)
    middle = k_max // 2
    assert all(sum(cell.ks) == middle * len(cell.ks) for cell in found if cell.kind != UNIFORM)
    assert all(max(cell.ks) <= k_max for cell in found)
    assert (Cell(UNIFORM, 8, (middle,)) in found) == (k_max > 1 or middle == 0)
    assert len(set(found)) == len(found)


def test_stock_vllm_decides_k_itself() -> None:
    assert stock([1, 8]) == [Cell(UNIFORM, 1), Cell(UNIFORM, 8)]
    assert stock([1])[0].deepest is None


def measurement(cell: Cell, step_ms: float | None, pace_ms: float = 1.0, **more: Any) -> dict[str, Any]:
    return {"cell": cell.plain(), "step_ms": step_ms, "pace_ms": pace_ms, **more}


A, B = Cell(UNIFORM, 8, (0,)), Cell(UNIFORM, 8, (7,))


def test_a_measurement_at_another_pace_does_not_count_where_there_is_a_usual_one() -> None:
    measured = [measurement(A, 5.0), measurement(A, 6.6, 1.32), measurement(B, 9.0), measurement(A, 5.2, 1.05)]
    assert untypical(measured) == [1]
    first, second = summaries(measured)
    assert (first["step_ms"], first["step_ms_range"], first["measurements"], first["left_out"]) == (
        pytest.approx(5.1), [5.0, 5.2], 2, 1,
    )  # fmt: skip
    assert (second["step_ms"], second["is_typical"]) == (9.0, True)


def test_a_cell_that_was_never_measured_at_the_usual_pace_says_so() -> None:
    measured = [measurement(A, 5.0), measurement(A, 5.0), measurement(A, 5.0), measurement(B, 9.0, 0.7)]
    rows = summaries(measured)
    assert [(row["step_ms"], row["is_typical"]) for row in rows] == [(5.0, True), (9.0, False)]


def test_measurements_that_disagree_at_one_pace_ask_for_another() -> None:
    assert disputed([measurement(A, 5.0), measurement(B, 9.0), measurement(A, 5.4), measurement(B, 12.0)]) == [1]
    assert disputed([measurement(A, 5.0), measurement(A, 9.0, 2.0), measurement(A, 5.0)]) == []
    [row] = summaries([measurement(A, 5.0), measurement(A, 12.0), measurement(A, 5.2)])
    assert row["step_ms"] == 5.2


def test_unknown_figures_stay_unknown() -> None:
    row, other = summaries([measurement(A, 5.0, span_ms=None), measurement(A, 5.0, span_ms=None), measurement(B, None)])
    assert row["span_ms"] is None
    assert (other["step_ms"], other["step_ms_range"]) == (None, None)
