import numpy as np
import pytest

from controller.decide import Demand
from controller.load import Load, Operation
from controller.observation import Evidence
from policy.types import Objective


def evidence(drafts: dict[str, float], running: dict[str, float]) -> Evidence:
    return Evidence({}, {}, {(name, 3): count for name, count in drafts.items()}, {}, {}, {}, running)


def test_the_mix_is_the_share_of_the_drafts_while_nothing_runs() -> None:
    load = Load()
    load.take(evidence({"code": 30, "chat": 10}, {}), 1.0, 1.0)
    assert load.shares() == {"code": 0.75, "chat": 0.25}


def test_a_crowd_that_runs_now_outweighs_the_drafts_of_the_last_look() -> None:
    load = Load()
    load.take(evidence({"chat": 90, "json": 10}, {"json": 16, "code": 16}), 1.0, 1.0)
    shares = load.shares()
    assert shares["json"] > 0.4
    assert shares["code"] > 0.4
    assert shares.get("chat", 0) < 0.15


def test_one_request_that_runs_now_says_little() -> None:
    load = Load()
    load.take(evidence({"chat": 90, "json": 10}, {"json": 1}), 1.0, 1.0)
    assert load.shares()["chat"] > 0.55


def test_few_requests_that_are_mostly_of_one_class_for_a_moment_do_not_turn_the_mix_round() -> None:
    load = Load()
    for _ in range(10):
        load.take(evidence({"code": 100, "json": 100}, {"code": 3, "json": 3}), 1.0, 3.0)
    load.take(evidence({"code": 180, "json": 20}, {"code": 5, "json": 1}), 1.0, 3.0)
    assert load.shares()["json"] > 0.35


def test_a_change_of_class_is_believed_at_once() -> None:
    load = Load()
    for _ in range(10):
        load.take(evidence({"json": 200}, {"json": 8}), 1.0, 3.0)
    load.take(evidence({"json": 150, "code": 50}, {"code": 8}), 1.0, 3.0)
    assert load.shares() == {"code": 1.0}


def test_few_requests_of_another_class_are_believed_when_two_looks_agree() -> None:
    load = Load()
    for _ in range(10):
        load.take(evidence({"json": 500, "code": 500}, {"json": 16, "code": 16}), 1.0, 2.0)
    load.take(evidence({"code": 1000}, {"code": 4}), 1.0, 2.0)
    assert 0.6 < load.shares()["code"] < 0.8
    load.take(evidence({"code": 1000}, {"code": 4}), 1.0, 2.0)
    assert load.shares() == {"code": 1.0}


def test_a_class_that_joins_is_believed_at_once() -> None:
    load = Load()
    for _ in range(10):
        load.take(evidence({"chat": 1000}, {"chat": 8}), 1.0, 2.0)
    load.take(evidence({"chat": 500, "code": 500}, {"chat": 4, "code": 4}), 1.0, 2.0)
    assert load.shares() == {"chat": 0.5, "code": 0.5}


def test_a_crowd_that_has_left_does_not_outvote_the_few_who_came() -> None:
    """One request drafts a tenth of what 32 did; each second counts alike."""
    load = Load()
    for _ in range(10):
        load.take(evidence({"json": 2500, "code": 2500}, {"json": 16, "code": 16}), 1.0, 2.0)
    for _ in range(3):
        load.take(evidence({"code": 500}, {"code": 1}), 1.0, 2.0)
    assert load.shares()["code"] > 0.85


def test_nothing_is_present_before_the_first_draft() -> None:
    assert Load().shares() == {}


def test_a_class_that_is_hardly_ever_in_a_step_is_not_present() -> None:
    load = Load()
    load.take(evidence({"chat": 98, "json": 2}, {"chat": 1}), 1.0, 1.0)
    assert set(load.shares()) == {"chat"}


class Linear:
    """1 ms, and 1 ms more for a step that drafts."""

    def step_s(self, decodes: object, verified: object, width: object) -> np.ndarray:
        return np.broadcast_to(0.001 + 0.001 * (np.asarray(width) > 0), np.broadcast(decodes, width).shape).copy()


def test_one_request_at_a_time_pays_for_no_other_classs_draft() -> None:
    demands = {
        0: Demand("chat", 0.5, np.array([0.0]), k_max=1),
        1: Demand("json", 0.5, np.array([1.0]), k_max=1),
    }
    operation = Operation.at(Load(), np.array([1.0]), demands, Linear(), Objective.GOODPUT)
    k = np.array([[0, 1]])
    assert operation.step_s(k) == pytest.approx(0.0015)
    assert operation.goodput(k) == pytest.approx((0.5 * 1 + 0.5 * 2) / 0.0015)
