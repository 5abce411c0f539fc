import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.decide import Demand, grid
from controller.explore import Explorer
from controller.facts import Facts
from controller.load import Load, Operation
from controller.observation import Cell, CellSums, Evidence
from controller.pool_cost import ProbeCost
from controller.pools import facts_of, next_version
from controller.probe import affordable_ratio
from controller.rows import k_at, of_schedule, row_of, to_ranges
from controller.tuning import Tuning
from policy.types import ClassPolicy, EngineRecord, KRange, Mode, Objective, Policy, Schedule


@given(st.integers(1, 300), st.integers(0, 2**32 - 1))
def test_a_schedule_and_its_matrix_say_the_same(top: int, seed: int) -> None:
    n = grid(top)
    k = np.random.default_rng(seed).integers(0, 8, (len(n), 2))
    classes = to_ranges(("default", "code"), n, k)
    schedule = Schedule("m", "p", 1, 0.0, 15.0, 0.0, classes)  # checks gaps and overlaps at birth
    assert (of_schedule(schedule, ("default", "code"), n) == k).all()
    for decodes in range(1, top + 1):
        assert k_at(classes["code"], decodes) == k[row_of(n, decodes), 1]


def test_a_class_that_a_schedule_does_not_name_has_the_defaults() -> None:
    schedule = Schedule("m", "p", 1, 0.0, 15.0, 0.0, {"default": (KRange(1, 4, 3), KRange(5, 9, 1))})
    assert of_schedule(schedule, ("new",), np.array([1.0, 5.0, 50.0])).tolist() == [[3], [1], [1]]


def engine(name: str, pool: str = "cpu", **changed: int) -> EngineRecord:
    plain = {"k_max": 7, "static_k": 3, "max_num_seqs": 64, "schedule_version": 0} | changed
    return EngineRecord(
        name, "http://x", "m", pool, plain["k_max"], plain["static_k"], plain["max_num_seqs"], "eagle3", "0", "0", 0, 0,
        plain["schedule_version"],
    )  # fmt: skip


def test_engines_make_pools_and_the_most_careful_value_holds() -> None:
    engines = [engine("a"), engine("b", k_max=5, static_k=4, max_num_seqs=128), engine("c", "gpu")]
    found = facts_of(engines, {}, [], Mode.ADVISE)
    assert [(item.pool, item.k_max, item.static_k, item.max_num_seqs) for item in found] == [
        ("cpu", 5, 3, 128),
        ("gpu", 7, 3, 64),
    ]
    assert found[0].policy.mode is Mode.ADVISE


def test_versions_go_on_when_redis_lost_its_data() -> None:
    engines = [engine("a", schedule_version=41), engine("c", "gpu", schedule_version=99)]
    (facts, _) = facts_of(engines, {}, [], Mode.ACT)
    assert next_version(facts, engines) == 42


def test_bounds_come_from_class_model_and_engine_and_a_pin_wins() -> None:
    classes = {"a": ClassPolicy(k_min=2), "b": ClassPolicy(k_max=9), "c": ClassPolicy(pin=6), "d": ClassPolicy(pin=9)}
    facts = Facts("m", "p", Policy(model="m", k_min=1, k_max=4, static_k=9, classes=classes), 7, 3, 64, None)
    assert [facts.bounds(name) for name in ("default", "a", "b", "c", "d")] == [(1, 4), (2, 4), (1, 7), (6, 6), (7, 7)]
    assert facts.fallback_k == 7


def test_a_depth_is_tried_for_a_limited_time_and_then_left_alone_for_a_while() -> None:
    explorer = Explorer(Tuning(explore_limit_s=4.0))
    assert [explorer.next_depth([7, 0], 8.0, float(at)) for at in range(5)] == [7, 7, 7, 7, 0]
    assert explorer.next_depth([7], 8.0, 20.0) is None
    assert explorer.next_depth([7], 32.0, 20.0) == 7  # another load is another question
    assert explorer.next_depth([7], 8.0, 64.1) == 7
    assert explorer.next_depth([], 8.0, 65.0) is None


class Plain:
    def step_s(self, decodes: object, verified: object, width: object) -> np.ndarray:
        return 2e-3 + 1e-4 * np.asarray(verified) + 6e-4 * (np.asarray(width) > 0)


def operation(n: float, hazard: float) -> Operation:
    load = Load(points=np.array([n]), weights=np.array([1.0]))
    found = Demand("code", 1.0, np.cumprod([hazard] * 7), k_max=7)
    return Operation.at(load, grid(64), {0: found}, Plain(), Objective.GOODPUT)


def test_probes_cost_at_most_the_limit() -> None:
    for n, hazard in ((1.0, 0.9), (16.0, 0.5), (32.0, 0.3)):
        at = operation(n, hazard)
        k = np.zeros((len(grid(64)), 1), dtype=np.int64)
        ratio = affordable_ratio(
            at, k, k_max=7, wanted_ratio=0.5, at_off=None, tuning=Tuning(probe_off_loss_ratio=0.01)
        )
        deep = np.full_like(k, 7)
        tokens = (1 - ratio) * at.goodput(k) * at.step_s(k) + ratio * at.goodput(deep) * at.step_s(deep)
        deep_s = at.step_s(deep) + 2 * 6e-4  # where K is 0 the drafter runs to catch up, and after the probe
        mixed = tokens / ((1 - ratio) * at.step_s(k) + ratio * deep_s)
        assert mixed >= 0.99 * at.goodput(k) - 1e-6
        assert ratio == 0.5 or mixed <= 0.9901 * at.goodput(k)
    assert (
        affordable_ratio(at, k, k_max=7, wanted_ratio=0.0, at_off=None, tuning=Tuning(probe_off_loss_ratio=0.01)) == 0.0
    )
    assert (
        affordable_ratio(at, k, k_max=0, wanted_ratio=0.5, at_off=None, tuning=Tuning(probe_off_loss_ratio=0.01)) == 0.0
    )


def test_what_probes_at_k_0_were_measured_to_take_counts() -> None:
    at, k = operation(8.0, 0.5), np.zeros((len(grid(64)), 1), dtype=np.int64)

    def ratio(extra_s: float, probed: float) -> float:
        found = ProbeCost(extra_s, probed)
        tuning = Tuning(probe_off_loss_ratio=0.01)
        return affordable_ratio(at, k, k_max=7, wanted_ratio=0.5, at_off=found, tuning=tuning)

    found = ratio(14e-3, 5.0)
    plain_s, tokens = float(at.step_s(k)), 8.0
    more = 5.0 * (at.demands[0].survival.sum())
    mixed = (tokens + found * more) / (plain_s + found * 14e-3)
    assert mixed == pytest.approx(0.99 * tokens / plain_s, rel=1e-3)
    assert ratio(28e-3, 5.0) < found
    assert ratio(14e-3, 1.0) < found


def test_the_load_is_the_recent_mix_and_the_steps_decodes() -> None:
    load = Load()
    assert load.shares() == {}
    cells = {Cell(8, 16, 1): CellSums(30, 0.3, 240, 480), Cell(2, 4, 1): CellSums(10, 0.1, 20, 40)}
    load.take(Evidence({}, {}, {("code", 1): 260.0}, {}, {"code": 300.0}, cells), 1.0, 1.0)
    assert load.shares() == {"code": 1.0}
    assert load.decodes == 6.5
    for _ in range(6):
        load.take(Evidence({}, {}, {("chat", 1): 260.0}, {}, {}, {}), 1.0, 1.0)
    assert load.shares() == {"chat": 1.0}


def test_measured_goodput_is_not_disturbed_by_prefills() -> None:
    cells = {Cell(8, 16, 1): CellSums(10, 0.1, 80, 160)}
    evidence = Evidence({}, {}, {("code", 1): 800.0}, {}, {"code": 1200.0}, cells)  # 90 of 100 steps held prefills
    assert operation(8.0, 0.5).measured(evidence, 0.0) == 1.5 * 80 / 0.1
    assert operation(8.0, 0.5).measured(evidence, 0.02) == pytest.approx(1.5 * 80 / 0.12)
    assert operation(8.0, 0.5).measured(Evidence({}, {}, {}, {}, {}, {}), 0.0) is None
