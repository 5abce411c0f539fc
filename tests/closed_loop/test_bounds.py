"""Pins, bounds and modes hold for everything that is published: what is chosen, tried, probed and held out."""

import pytest

from specpilot.controller.law.context import PoolContext
from specpilot.controller.law.control_law import ControlLaw
from specpilot.controller.law.reason import Reason
from specpilot.policy.model_policy import ClassPolicy, Mode, Policy
from specpilot.policy.schedule import Ranges
from tests.closed_loop.single_k import of_single_k
from tests.simulation.engine import MODEL, POOL
from tests.simulation.loop import Run, simulate
from tests.simulation.traffic import Phase, Source


def policy(control_group_ratio: float = 0.0, **classes: ClassPolicy) -> Policy:
    return Policy(MODEL, control_group_ratio=control_group_ratio, classes=classes)


def published(run: Run) -> list[Ranges]:
    found: list[Ranges] = []
    for second in run.seconds:
        assert second.result.publish is not None
        found += [second.result.publish, second.result.proposed]
    return found


def ks(rows: Ranges, traffic_class: str) -> set[int]:
    return {item.k for name, ranges in rows.items() if name.partition(":")[0] == traffic_class for item in ranges}


def test_a_pin_of_a_class_that_is_not_there_restricts_nobody() -> None:
    phase = Phase(30, [Source("code_hot", 16)])
    run = simulate([phase], policy=policy(batch=ClassPolicy(pin=7)), seed=1)
    assert 0 in ks(run.seconds[-1].result.proposed, "default")
    assert run.throughput(0, 8) >= 0.95 * of_single_k(phase, 0)


@pytest.mark.parametrize("control_group_ratio", [0.0, 0.3])
def test_pins_and_bounds_hold_whatever_is_published(control_group_ratio: float) -> None:
    wanted = policy(
        control_group_ratio, pinned=ClassPolicy(pin=5), small=ClassPolicy(k_max=2), large=ClassPolicy(k_min=4)
    )
    sources = [Source("json", 4, "pinned"), Source("json", 4, "small"), Source("chat_hot", 4, "large")]
    run = simulate([Phase(40, sources)], policy=wanted, seed=2)
    for rows in published(run):
        assert ks(rows, "pinned") == {5}
        assert ks(rows, "small") <= {0, 1, 2}
        assert ks(rows, "large") <= {4, 5, 6, 7}
        assert "pinned:0" not in rows  # a row without a band is not probed
    decodes, k = run.fleet[0].by_source.T
    assert k[0] / decodes[0] == pytest.approx(5.0, abs=0.3)  # fewer where a reply is about to end
    assert k[1] / decodes[1] <= 2.0
    assert k[2] / decodes[2] >= 3.5


def test_probes_of_a_bounded_pool_stay_within_its_bounds() -> None:
    run = simulate([Phase(30, [Source("json", 4), Source("code_hot", 12)])], policy=Policy(MODEL, k_max=2))
    assert run.fleet[0].deepest_probe <= 2
    assert {k for second in run.seconds for k in ks(second.result.proposed, "default")} <= {0, 1, 2}


def test_advise_publishes_nothing_at_all_and_tells_what_it_would() -> None:
    run = simulate([Phase(30, [Source("json", 8)])], policy=Policy(MODEL, mode=Mode.ADVISE))
    assert all(second.result.publish is None and second.result.guidance is None for second in run.seconds)
    assert all(second.result.probe_ratio == 0 for second in run.seconds)
    assert Reason.ADAPTIVE in run.reasons
    newest = run.seconds[-1].result
    assert newest.k(newest.proposed)["default:7"] == 7


def test_advise_publishes_nothing_where_no_engine_can_speculate_either() -> None:
    result = ControlLaw().decide(PoolContext(MODEL, POOL, Policy(MODEL, mode=Mode.ADVISE), 0, 0, 64, None), 1.0, 1.0)
    assert (result.reason, result.publish) == (Reason.NO_DRAFTER, None)


def test_off_publishes_the_static_k_without_a_probe() -> None:
    run = simulate([Phase(10, [Source("json", 8)])], policy=Policy(MODEL, mode=Mode.OFF, static_k=2))
    assert {k for second in run.seconds for k in ks(second.result.publish or {}, "default")} == {2}
    assert {second.result.probe_ratio for second in run.seconds} == {0.0}
