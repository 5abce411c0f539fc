from dataclasses import replace

import numpy as np
import pytest

from controller.catch_up import CatchUp
from controller.decide import Demand, choose
from controller.observation import NO_EVIDENCE, CatchUpCell, Cell, CellSums, Evidence, Series, evidence_of
from controller.step_cost import StepCost
from controller.tuning import Tuning
from policy import engine_metrics as names
from tests.closed_loop.plant import ROW_S

N, STEP_S = 8, 0.003
COST = StepCost(0.002, 0.0001, 0.0006, 0.00025, 0.00003, np.zeros(23), per_read_s=ROW_S)


def left(steps: float, caught_up: float = 0.0, catch_ups: float = 0.0) -> Evidence:
    """Steps of `N` decodes at K = 0, and `catch_ups` more in which `caught_up` rows went through the drafter."""
    seconds = catch_ups * float(COST.step_s(N, N, 0)) + caught_up * ROW_S
    cells = {Cell(N, N, 0): CellSums(steps, steps * STEP_S, steps * N, steps * N)} if steps else {}
    sums = CellSums(catch_ups, seconds, catch_ups * N, catch_ups * N, caught_up)
    return replace(NO_EVIDENCE, cells=cells, catch_ups={CatchUpCell(N, 0): sums} if catch_ups else {})


def learned(*looks: Evidence) -> float:
    catch_up = CatchUp(Tuning())
    for look in looks:
        catch_up.learn(look, COST)
    return catch_up.row_s


def test_the_price_of_a_row_is_found_when_all_are_caught_up() -> None:
    assert learned(left(300), left(300), left(0, 600 * N, 3)) == pytest.approx(ROW_S, rel=0.01)
    assert learned(*(left(300, 300 * N, 3) for _ in range(200))) == pytest.approx(ROW_S, rel=0.01)


def test_what_requests_leave_that_end_at_k_0_costs_nothing() -> None:
    assert learned(left(300), left(300)) == 0.0
    assert learned(*(left(300, 75 * N, 3) for _ in range(200))) == pytest.approx(ROW_S / 4, rel=0.01)


def test_a_pool_that_no_longer_runs_at_k_0_remembers_and_one_that_does_forgets() -> None:
    before = learned(left(300), left(0, 300 * N, 1))
    assert learned(left(300), left(0, 300 * N, 1), *[NO_EVIDENCE] * 1000) == before
    assert learned(left(300), left(0, 300 * N, 1), *[left(300)] * 400) < before / 20


def test_k_0_loses_where_it_only_seemed_to_be_cheap() -> None:
    """One draft token, accepted in so many cases that it pays by less than what K = 0 leaves behind."""
    demand = [Demand("code", 1.0, np.array([0.85]), k_max=1)]
    n = np.array([float(N)])
    assert choose(demand, n, COST).tolist() == [[0]]
    assert choose(demand, n, replace(COST, row_s=ROW_S)).tolist() == [[0]]
    assert choose(demand, n, replace(COST, row_s=10 * ROW_S)).tolist() == [[1]]


@pytest.mark.parametrize("row_s", [0.0, ROW_S, 1.0])
def test_what_is_left_never_costs_more_than_the_drafter_in_the_step(row_s: float) -> None:
    cost = replace(COST, row_s=row_s)
    n = np.arange(1.0, 200.0)
    assert (cost.step_s(n, n, 0) <= cost.step_s(n, n, 1)).all()


def test_verified_drafts_that_are_read_at_k_0_are_charged_and_leave_a_position_each() -> None:
    """A probe's outcome: 4 drafts of 7 verified at width 0."""
    look = replace(left(99), catch_ups={CatchUpCell(N, 0): CellSums(1, 0.01, N, N + 28, 28)})
    assert learned(look) == pytest.approx(28 * ROW_S / (100 * N), rel=0.01)


def test_evidence_reads_the_engines_counters() -> None:
    counted = {
        names.CATCH_UP_STEPS: 2.0, names.CATCH_UP_STEP_SECONDS: 0.5,
        names.CATCH_UP_STEP_DECODES: 16.0, names.CATCH_UP_STEP_VERIFIED: 30.0, names.CATCH_UP_STEP_READ: 99.0,
    }  # fmt: skip
    part = {Series(metric, ("8", "0")): value for metric, value in counted.items()}
    other = {Series(metric, ("8", "7")): value for metric, value in counted.items()}
    found = evidence_of([part, part | other])
    assert found.catch_ups == {CatchUpCell(8, 0): (4, 1, 32, 60, 198), CatchUpCell(8, 7): (2, 0.5, 16, 30, 99)}
    assert not found.cells
