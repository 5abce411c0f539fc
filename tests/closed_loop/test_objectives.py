"""An operator wants low latency, of all requests or of one class: that costs goodput, and is not taken back for it."""

import pytest

from controller.guard import Reason
from policy.types import ClassPolicy, Objective, Policy
from tests.closed_loop.plant import MODEL, Phase
from tests.closed_loop.simulation import Run, simulate

CHANGED_S, ENDS_S = 40, 120
HARD, EASY = (0.3,) * 7, (0.9,) * 7


def step_s(n: float, m: float, width: int) -> float:
    """A step of which verifying takes most: what is good for one class makes the other wait."""
    return 0.010 + 0.00025 * m + (0.001 if width else 0.0)


def played(later: Policy, seed: int) -> Run:
    before = Policy(model=MODEL, classes={"chat": ClassPolicy(), "json": ClassPolicy()})
    phase = Phase(ENDS_S, {"chat": 8, "json": 8}, {"chat": HARD, "json": EASY})
    return simulate([phase], policy=before, later=(CHANGED_S, later), step_s=step_s, seed=seed)


def chat_latency_s(k: dict[str, int]) -> float:
    verified = 8 * (1 + k["chat"]) + 8 * (1 + k["json"])
    return step_s(16, verified, max(k.values())) / sum(HARD[0] ** i for i in range(k["chat"] + 1))


@pytest.mark.parametrize("seed", range(3))
def test_an_slo_holds_although_it_costs_goodput(seed: int) -> None:
    chat = ClassPolicy(itl_slo_ms=17.0)
    run = played(Policy(model=MODEL, classes={"chat": chat, "json": ClassPolicy()}), seed)
    before, after = run.ticks[CHANGED_S - 2], run.ticks[CHANGED_S + 5 :]
    assert chat_latency_s(before.k) > 0.019
    assert max(chat_latency_s(tick.k) for tick in after) < 0.0175
    assert max(tick.goodput for tick in after) < 0.9 * before.goodput
    assert not {tick.verdict.reason for tick in run.ticks} & {Reason.ROLLBACK, Reason.BACK_OFF}


@pytest.mark.parametrize("seed", range(3))
def test_an_objective_of_latency_is_kept_although_it_costs_goodput(seed: int) -> None:
    classes = {"chat": ClassPolicy(), "json": ClassPolicy()}
    run = played(Policy(model=MODEL, objective=Objective.LATENCY, classes=classes), seed)
    before, after = run.ticks[CHANGED_S - 2], run.ticks[CHANGED_S + 5 :]
    assert max(chat_latency_s(tick.k) for tick in after) < 0.9 * chat_latency_s(before.k)
    assert max(tick.goodput for tick in after) < 0.9 * before.goodput
    assert not {tick.verdict.reason for tick in run.ticks} & {Reason.ROLLBACK, Reason.BACK_OFF}
