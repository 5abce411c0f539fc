"""Pins, bounds and modes hold for everything that is published: what is chosen, tried, probed and held out."""

import pytest

from specpilot.controller.decision.context import PoolContext
from specpilot.controller.decision.decider import Decider
from specpilot.controller.decision.reason import Reason
from specpilot.policy.model_policy import ClassPolicy, Mode, Policy
from specpilot.policy.schedule import Cause, Override
from tests.closed_loop.single_k import of_single_k
from tests.simulation.engine import MODEL, POOL
from tests.simulation.loop import simulate
from tests.simulation.traffic import Phase, Source


def policy(control_group_ratio: float = 0.0, **classes: ClassPolicy) -> Policy:
    return Policy(MODEL, control_group_ratio=control_group_ratio, classes=classes)


def test_a_pin_of_a_class_that_is_not_there_restricts_nobody() -> None:
    phase = Phase(30, [Source("code_hot", 16)])
    run = simulate([phase], policy=policy(batch=ClassPolicy(pin=7)), seed=1)
    assert run.throughput(0, 8) >= 0.95 * of_single_k(phase, 0)


@pytest.mark.parametrize("control_group_ratio", [0.0, 0.3])
def test_pins_and_bounds_hold_also_for_the_control_groups_static_k(control_group_ratio: float) -> None:
    wanted = policy(
        control_group_ratio, pinned=ClassPolicy(pin=5), small=ClassPolicy(k_max=2), large=ClassPolicy(k_min=4)
    )
    sources = [Source("json", 4, "pinned"), Source("json", 4, "small"), Source("chat_hot", 4, "large")]
    run = simulate([Phase(40, sources)], policy=wanted, seed=2)
    before = simulate([Phase(3, sources)], policy=wanted, seed=2)  # the engine has no guidance in the first second
    assert (Reason.CONTROL_GROUP in run.reasons) == (control_group_ratio > 0)
    decodes, k = (run.fleet[0].by_source - before.fleet[0].by_source).T
    assert k[0] / decodes[0] == pytest.approx(5.0, abs=0.3)  # fewer where a reply is about to end
    assert k[1] / decodes[1] <= 2.0
    assert k[2] / decodes[2] >= 3.5


def test_probes_of_a_bounded_pool_stay_within_its_bounds() -> None:
    run = simulate([Phase(30, [Source("json", 4), Source("code_hot", 12)])], policy=Policy(MODEL, k_max=2))
    assert run.fleet[0].deepest_probe <= 2


@pytest.mark.parametrize("mode", [Mode.ADVISE, Mode.OFF])
def test_the_other_modes_run_the_static_k_without_a_probe(mode: Mode) -> None:
    run = simulate([Phase(10, [Source("json", 8)])], policy=Policy(MODEL, mode=mode, static_k=2))
    for second in run.seconds:
        assert second.result.guidance is not None
        assert second.result.guidance.override == Override(2, Cause(mode.value))
    assert [second.result.k for second in run.seconds[3:]] == [{"default": 2.0}] * 7
    assert run.fleet[0].probes == 0


def test_where_no_engine_can_speculate_nothing_is_published() -> None:
    result = Decider().decide(PoolContext(MODEL, POOL, Policy(MODEL, mode=Mode.ADVISE), 0, 0, None), 1.0, 1.0)
    assert (result.reason, result.guidance) == (Reason.NO_DRAFTER, None)
