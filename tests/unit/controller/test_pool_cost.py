import numpy as np
import pytest

from controller.observation import CatchUpCell, Cell, CellSums
from controller.pool_cost import PoolCost
from controller.tuning import Tuning
from tests.closed_loop.plant import concave_step_s, cpu_step_s, gpu_step_s, rounded

PLANTS = [cpu_step_s, gpu_step_s, concave_step_s]


def cell(n: int, k: int, step_s: float, steps: int = 100) -> tuple[Cell, CellSums]:
    m = n * (1 + k)
    return Cell(rounded(n), rounded(m), k), CellSums(steps, step_s * steps, n * steps, m * steps)


def teach(cost: PoolCost, truth: object, points: list[tuple[int, int]], seed: int = 0, factor: float = 1.0) -> None:
    rng = np.random.default_rng(seed)
    for n, k in points:
        seconds = truth(n, n * (1 + k), k) * factor * float(np.exp(rng.normal(0, 0.03)))
        cost.learn(dict([cell(n, k, seconds)]), 1.0)


@pytest.mark.parametrize("truth", PLANTS, ids=["cpu", "gpu", "concave"])
@pytest.mark.parametrize("seed", range(3))
def test_steps_it_did_not_see_are_predicted_within_a_tenth(truth: object, seed: int) -> None:
    rng = np.random.default_rng(seed)
    every = [(n, k) for n in (1, 2, 4, 6, 8, 12, 16, 24, 32) for k in range(8)]
    seen = rng.permutation(len(every))[: len(every) // 3]
    cost = PoolCost()
    teach(cost, truth, [every[index] for index in seen], seed)
    fit = cost.fit()
    assert fit is not None
    hidden = [every[index] for index in range(len(every)) if index not in set(seen)]
    errors = [abs(float(fit.step_s(n, n * (1 + k), k)) / truth(n, n * (1 + k), k) - 1) for n, k in hidden]
    assert np.median(errors) <= 0.10
    assert np.median(errors) <= 0.06


def test_one_k_alone_leaves_the_other_depths_unknown() -> None:
    cost = PoolCost()
    assert cost.fit() is None
    assert set(cost.lacking(7)) == {0, 2, 7}
    teach(cost, cpu_step_s, [(8, 7)] * 3)
    assert set(cost.lacking(7)) == {0, 2}
    assert cost.is_measured(8, 7)
    assert not cost.is_measured(16, 7)
    teach(cost, cpu_step_s, [(8, 0), (8, 2)])
    assert cost.lacking(7) == ()
    assert cost.lacking(0) == ()


@pytest.mark.parametrize("together", [[(8, 4)], [(8, 4), (7, 4), (9, 4)]], ids=["one cell", "three cells"])
def test_noise_moves_no_relation_to_what_is_not_tried(together: list[tuple[int, int]]) -> None:
    """Looks of half a second, 2,000 of them: those of slow steps have fewer, so averages of looks and steps differ."""
    rng = np.random.default_rng(4)
    cost = PoolCost()
    teach(cost, cpu_step_s, [(8, k) for k in (0, 2, 4, 7)] * 3)
    fits = []
    for _ in range(2000):
        look = {}
        for n, k in together:
            seconds = cpu_step_s(n, n * (1 + k), k) * float(np.exp(rng.gamma(1.0, 0.05)))
            look |= dict([cell(n, k, seconds, steps=max(1, int(0.5 / seconds / len(together))))])
        cost.learn(look, 0.5)
        fits.append(cost.fit())
    relations = [float(fit.step_s(8, 8, 0) / fit.step_s(8, 40, 4)) for fit in (fits[100], fits[-1])]
    assert relations[1] == pytest.approx(relations[0], rel=0.03)


def test_drift_that_strikes_every_k_alike_keeps_their_relation() -> None:
    cost = PoolCost()
    teach(cost, cpu_step_s, [(8, k) for k in (0, 2, 4, 7)] * 3)
    before = cost.fit()
    assert before is not None
    relation = float(before.step_s(8, 8, 0) / before.step_s(8, 40, 4))
    teach(cost, cpu_step_s, [(8, 4)] * 10, factor=2.0)
    after = cost.fit()
    assert after is not None
    assert float(after.step_s(8, 8, 0) / after.step_s(8, 40, 4)) == pytest.approx(relation, rel=0.1)
    assert float(after.step_s(8, 40, 4)) == pytest.approx(2 * cpu_step_s(8, 40, 4), rel=0.1)


def test_a_pause_in_one_look_is_no_drift() -> None:
    cost = PoolCost()
    teach(cost, cpu_step_s, [(8, k) for k in (0, 2, 4, 7)] * 3)
    teach(cost, cpu_step_s, [(8, 4)], factor=3.0)
    teach(cost, cpu_step_s, [(16, 4)])
    fit = cost.fit()
    assert fit is not None
    for n, k in ((8, 4), (16, 4), (8, 0)):
        assert float(fit.step_s(n, n * (1 + k), k)) == pytest.approx(cpu_step_s(n, n * (1 + k), k), rel=0.05)


def test_one_long_pause_moves_a_cell_by_a_bounded_factor() -> None:
    cost = PoolCost()
    teach(cost, cpu_step_s, [(8, 4)] * 5 + [(8, 0)] * 5)
    cost.learn(dict([cell(8, 4, 60.0, steps=1)]), 1.0)
    fit = cost.fit()
    assert fit is not None
    assert float(fit.step_s(8, 40, 4)) < 5 * cpu_step_s(8, 40, 4)


def test_a_frozen_cost_learns_no_more() -> None:
    cost = PoolCost(Tuning(freeze_cost=True))
    teach(cost, cpu_step_s, [(8, k) for k in (0, 2, 7)])
    first = cost.fit()
    teach(cost, cpu_step_s, [(8, 7)] * 5, factor=3.0)
    assert cost.fit() is first


def test_what_a_probe_takes_at_k_0_is_read_off_the_two_steps_it_is_in() -> None:
    """Of 8 requests 5 are probed: a step in which they catch up and are drafted for, one in which they are verified."""
    cost = PoolCost()
    probes = {
        CatchUpCell(8, 7): CellSums(4, 4 * 11.0e-3, 4 * 8, 4 * 8, 4 * 200),
        CatchUpCell(8, 0): CellSums(4, 4 * 8.0e-3, 4 * 8, 4 * (8 + 5 * 7), 4 * 35),
    }
    plain = dict([cell(8, 0, 3.0e-3)])
    assert cost.probe_at_off(8.0, 7) is None
    cost.learn(plain, 1.0)
    assert cost.probe_at_off(8.0, 7) is None
    cost.learn(plain, 1.0, catch_ups=probes)
    found = cost.probe_at_off(9.4, 7)
    assert found is not None
    assert found.probed == pytest.approx(5.0)
    assert found.extra_s == pytest.approx(11.0e-3 + 8.0e-3 - 2 * 3.0e-3, rel=0.05)
    assert cost.probe_at_off(32.0, 7) is None
