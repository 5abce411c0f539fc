"""The hold-out: what adaptive K gains over the static K is measured, and a law that loses steps back."""

import math

import pytest

from specpilot.bench.simulation.engine import MODEL, Engine
from specpilot.bench.simulation.loop import simulate
from specpilot.bench.simulation.traffic import Phase, Source
from specpilot.controller.law.hold_out import is_drawn
from specpilot.controller.law.reason import Reason
from specpilot.policy.types import Policy
from tests.closed_loop.single_k import of_single_k

OFTEN = Policy(MODEL, hold_out_ratio=0.2)
DEEP = (4, 5, 6, 7)


def test_about_the_share_of_windows_is_drawn() -> None:
    drawn = [is_drawn("model", "pool", index, 0.01) for index in range(20_000)]
    assert 150 <= sum(drawn) <= 250


def test_the_gain_is_measured_with_an_interval_that_holds_the_truth() -> None:
    phase = Phase(400, [Source("json", 8)])
    run = simulate([phase], policy=OFTEN)
    found = run.seconds[-1].result.evidence["hold_out"]
    truth = of_single_k(phase, 7) / of_single_k(phase, 3) - 1
    assert found["windows"] >= 10
    assert not found["is_stepped_back"]
    assert found["gain_ratio"]["low"] - 0.01 <= truth <= found["gain_ratio"]["high"] + 0.01
    assert found["gain_ratio"]["high"] - found["gain_ratio"]["low"] <= 0.08
    held_out = [second for second in run.seconds if second.result.reason is Reason.HOLD_OUT]
    assert 0.1 <= len(held_out) / len(run.seconds) <= 0.3


def test_none_is_held_out_where_the_policy_says_so() -> None:
    run = simulate([Phase(100, [Source("json", 8)])], policy=Policy(MODEL, hold_out_ratio=0.0))
    assert Reason.HOLD_OUT not in run.reasons


@pytest.mark.parametrize("seed", range(2))
def test_a_law_that_is_lied_to_steps_back_to_the_static_k(seed: int) -> None:
    """The engine's counters claim that all is accepted: the law goes deep, and tokens per second tell otherwise."""

    def lie(_: int, fleet: list[Engine]) -> None:
        for engine in fleet:
            engine.claims = dict.fromkeys(range(1, 8), 0.99)

    phase = Phase(600, [Source("chat_hot", 12)])
    run = simulate([phase], policy=Policy(MODEL, hold_out_ratio=0.2, static_k=0), disturb=lie, seed=seed)
    back = [second.at for second in run.seconds if second.result.reason is Reason.STATIC_BETTER]
    assert back
    assert back[0] <= 300
    after = [second for second in run.seconds if second.at > back[0] + 5]
    share = sum(second.result.reason is Reason.STATIC_BETTER for second in after) / len(after)
    assert share >= 0.8
    static = of_single_k(phase, 0)
    assert sum(second.throughput for second in after) / len(after) >= 0.9 * static


def test_a_law_that_gains_does_not_step_back() -> None:
    for seed in range(3):
        run = simulate([Phase(300, [Source("json", 4), Source("code", 8)])], policy=OFTEN, seed=seed)
        assert Reason.STATIC_BETTER not in run.reasons
        assert all(math.isfinite(second.throughput) for second in run.seconds)
