import numpy as np
import pytest

from specpilot.bench.simulation.step_times import cpu_step_s
from specpilot.controller.estimation.observation import Cell, CellSums, Evidence
from specpilot.controller.estimation.pool_cost import PoolCost
from specpilot.controller.tuning import Tuning


def steps(n: int, k: int, count: float = 100.0, slowdown: float = 1.0, prefill: int = 0) -> Evidence:
    verified, slots = n * (1 + k), n * k
    seconds = count * slowdown * cpu_step_s(n, verified, slots, prefill, 0.0)
    cell = Cell(n, verified, slots, prefill)
    return Evidence(
        cells={cell: CellSums(count, seconds, n * count, verified * count, slots * count, 0.0, prefill * count)},
        drafts={("default", 4, k): n * count},
    )


def taught(cost: PoolCost, times: int = 3) -> PoolCost:
    for _ in range(times):
        for n in (4, 8, 16):
            for k in (0, 2, 7):
                cost.learn(steps(n, k), 1.0)
    return cost


def test_nothing_is_known_before_the_first_step() -> None:
    assert PoolCost().fit() is None


def test_it_predicts_what_it_did_not_see() -> None:
    fit = taught(PoolCost()).fit()
    assert fit is not None
    assert float(fit.step_s(12.0, 60.0, 48.0)) == pytest.approx(cpu_step_s(12, 60, 48, 0, 0), rel=0.1)


def test_steps_that_prefill_are_learned_from_too() -> None:
    cost = taught(PoolCost())
    cost.learn(steps(8, 2, prefill=256), 1.0)
    fit = cost.fit()
    assert fit is not None
    assert float(fit.step_s(8.0, 24.0, 16.0, prefill=256.0)) == pytest.approx(cpu_step_s(8, 24, 16, 256, 0), rel=0.1)


def test_a_slower_machine_is_followed_for_depths_that_did_not_run_since() -> None:
    cost = taught(PoolCost())
    for _ in range(25):
        cost.learn(steps(8, 2, slowdown=1.3), 1.0)
    fit = cost.fit()
    assert fit is not None
    assert float(fit.step_s(8.0, 64.0, 56.0)) == pytest.approx(1.3 * cpu_step_s(8, 64, 56, 0, 0), rel=0.1)


def test_one_pause_does_not_change_the_pace() -> None:
    cost = taught(PoolCost())
    cost.learn(steps(8, 2, slowdown=5.0), 1.0)
    fit = cost.fit()
    assert fit is not None
    assert fit.pace_ratio == pytest.approx(1.0, abs=0.05)


def test_measured_is_told_from_extrapolated() -> None:
    cost = PoolCost()
    cost.learn(steps(8, 2), 1.0)
    assert cost.is_measured(2, 8.0)
    assert cost.is_measured(2)
    assert not cost.is_measured(2, 32.0)
    assert not cost.is_measured(7, 8.0)
    assert not cost.is_measured(0)


def test_what_is_left_at_k_0_is_charged_to_those_who_left_it() -> None:
    cost, plain = PoolCost(), steps(8, 2)
    for k in (2, 7, 2, 7):
        cost.learn(steps(8, k), 1.0)
    read_s = 0.004
    caught = {
        Cell(8, 16, 16, catches_up=True): CellSums(
            10.0, 10 * (cpu_step_s(8, 24, 16, 0, 0) + read_s), 80.0, 240.0, 160.0, 0.0, 0.0, 500.0
        )
    }
    for _ in range(20):
        cost.learn(Evidence(cells=plain.cells, catch_ups=caught, drafts={("d", 0, 0): 400.0, ("d", 7, 2): 400.0}), 1.0)
    fit = cost.fit()
    assert fit is not None
    assert fit.left_s == pytest.approx(10 * read_s / (0.5 * 400), rel=0.25)  # half of the decodes are drafted for


def test_what_probes_catch_up_at_k_0_for_all_makes_no_mixed_k_expensive() -> None:
    """Probes have a budget of their own at every K; by the 1 % of decodes that are probes it seemed a hundredfold."""
    cost, plain = PoolCost(), steps(8, 0)
    for k in (0, 7, 0, 7):
        cost.learn(steps(8, k), 1.0)
    probing = {
        Cell(8, 16, 16, catches_up=True): CellSums(
            2.0, 2 * (cpu_step_s(8, 9, 1, 0, 0) + 0.004), 16.0, 18.0, 2.0, 0.0, 0.0, 300.0
        )
    }
    drafts = {("d", 0, 0): 792.0, ("d", 0, 1): 8.0}
    for _ in range(20):
        cost.learn(Evidence(cells=plain.cells, catch_ups=probing, drafts=drafts), 1.0)
    fit = cost.fit()
    assert fit is not None
    assert fit.left_s == 0.0


def test_cells_are_bounded() -> None:
    cost = PoolCost(Tuning(cells_limit=20))
    rng = np.random.default_rng(1)
    for _ in range(100):
        cost.learn(steps(int(rng.integers(1, 64)), int(rng.integers(0, 8))), 1.0)
    assert len(cost._cells) <= 20


@pytest.mark.parametrize("pace", [0.6, 1.6])
def test_a_pace_that_changes_with_the_load_is_seen_at_once(pace: float) -> None:
    """At 8 decodes the machine was fast, or slow; at 12, a new load, it is as at first."""
    cost = taught(PoolCost())
    for _ in range(5):
        cost.learn(steps(8, 7, slowdown=pace), 1.0)
    for _ in range(3):
        cost.learn(steps(12, 7, count=20.0), 0.5)
    fit = cost.fit()
    assert fit is not None
    for k in (0, 2, 7):
        predicted = float(fit.step_s(12.0, 12.0 * (1 + k), 12.0 * k))
        assert predicted == pytest.approx(cpu_step_s(12, 12 * (1 + k), 12 * k, 0, 0), rel=0.25), k


def test_an_engine_that_joins_tells_nothing_of_the_pace_and_of_what_is_known() -> None:
    """The table of a new engine covers its whole life."""
    cost = taught(PoolCost())
    joined = Evidence(cells={**steps(8, 2, slowdown=3.0).cells, **steps(32, 0).cells})
    cost.learn(joined, 0.0, is_history=True)
    fit = cost.fit()
    assert fit is not None
    assert fit.pace_ratio == pytest.approx(1.0, abs=0.05)
    assert float(fit.step_s(8.0, 24.0, 16.0)) == pytest.approx(cpu_step_s(8, 24, 16, 0, 0), rel=0.1)
    assert cost.is_measured(0, 32.0)


def test_the_pace_does_not_wander_while_the_machine_stays_as_it_is() -> None:
    """Only the product of T and the slowdown factor is measured."""
    cost, rng = taught(PoolCost()), np.random.default_rng(1)
    paces = []
    for look in range(400):
        for k in (0, 3, 7):
            slowdown = float(np.exp(rng.normal(0.0, 0.04)))
            cost.learn(steps((6, 11, 15, 23)[look // 40 % 4], k, count=20.0, slowdown=slowdown), 0.2)
        fit = cost.fit()
        assert fit is not None
        paces.append(fit.pace_ratio)
    assert 0.9 < min(paces) <= max(paces) < 1.1
