"""A forecast says what the law then does, and changes nothing of what it remembers."""

import asyncio
import time
from dataclasses import replace

import pytest

from specpilot.controller.forecast import forecast_of, forecaster
from specpilot.policy.bands import BANDS
from specpilot.policy.model_policy import ClassPolicy, Mode, Policy
from specpilot.policy.schedule import Objective
from tests.simulation.engine import MODEL
from tests.support.loop_rig import Rig, k_of


@pytest.fixture(scope="module")
def rig() -> Rig:
    """A controller that has settled under load."""
    made = Rig.new()
    made.store.put_policy(Policy(MODEL, static_k=1), 0, 0.0)
    asyncio.run(made.tick(60))
    return made


def test_the_law_then_does_what_was_forecast(rig: Rig) -> None:
    forecast = forecaster(rig.loop.view, Mode.ACT)
    before = rig.store.log[-1].schedule.classes
    wanted = Policy(MODEL, static_k=1, k_max=1)
    [found] = forecast(MODEL, wanted)
    assert found.unknown == ""
    assert found.today is not None
    assert found.then is not None
    assert k_of(found.today.schedule) == k_of(before) > 1 >= k_of(found.then.schedule)
    assert found.today.schedule == before
    assert found.today.k == rig.store.log[-1].k
    assert found.gain_ratio is not None
    assert found.gain_ratio < -0.1  # JSON is nearly always accepted: K = 1 throws that away
    assert found.then.throughput == pytest.approx((1 + found.gain_ratio) * found.today.throughput)
    highest = f"default:{BANDS - 1}" if "default:7" in found.today.itl_ms else "default"
    then = found.then.itl_ms.get(highest, found.then.itl_ms["default"])
    assert then == pytest.approx(8000 / found.then.throughput, rel=0.2)  # 7 to 8 decode, most of them in that band
    assert then > found.today.itl_ms[highest] > 0
    asyncio.run(rig.tick())
    assert k_of(rig.store.log[-1].schedule.classes) == k_of(before)
    rig.store.put_policy(wanted, None, 0.0)
    asyncio.run(rig.tick(4))
    assert (rig.store.log[-1].k.keys(), rig.k()) == (found.then.k.keys(), found.then.k["default:7"])
    [back] = forecast(MODEL, wanted)
    assert back.today == back.then
    assert back.gain_ratio == 0.0
    rig.store.put_policy(Policy(MODEL, static_k=1), None, 0.0)
    asyncio.run(rig.tick(20))


def test_without_a_policy_the_default_mode_holds(rig: Rig) -> None:
    [found] = forecaster(rig.loop.view, Mode.OFF)(MODEL, None)
    assert found.then is not None
    assert (found.then.reason, set(found.then.k.values())) == ("off", {3})  # the engines' own static K


def test_an_objective_and_an_slo_are_forecast(rig: Rig) -> None:
    forecast = forecaster(rig.loop.view, Mode.ACT)
    for policy in (
        Policy(MODEL, objective=Objective.LATENCY),
        Policy(MODEL, classes={"code": ClassPolicy(itl_slo_ms=1000)}),
    ):
        [found] = forecast(MODEL, policy)
        assert found.then is not None
        assert found.then.throughput is not None


def test_another_weight_alone_gains_nothing(rig: Rig) -> None:
    [found] = forecaster(rig.loop.view, Mode.ACT)(
        MODEL, Policy(MODEL, static_k=1, classes={"default": ClassPolicy(weight=2.0)})
    )
    assert found.gain_ratio == pytest.approx(0.0, abs=0.02)


def test_a_window_of_the_control_group_is_not_taken_for_what_the_policy_would_do(rig: Rig) -> None:
    view = rig.loop.view()
    assert view is not None
    often = Policy(MODEL, static_k=1, control_group_ratio=0.5)
    found = [forecast_of(replace(view, at=view.at + 4.0 * window), view.pools[0], often) for window in range(16)]
    reasons = {item.then.reason for item in found if item.then is not None}
    assert len(reasons) == 1
    assert reasons.isdisjoint({"control_group", "static_better"})


def test_a_forecast_is_quick(rig: Rig) -> None:
    began = time.process_time()
    forecaster(rig.loop.view, Mode.ACT)(MODEL, Policy(MODEL, k_max=2))
    assert time.process_time() - began < 1.0


def test_what_cannot_be_known_is_said(rig: Rig) -> None:
    assert forecaster(rig.loop.view, Mode.ACT)("another", None) == []
    assert forecaster(lambda: None, Mode.ACT)(MODEL, None) == []
    fresh = Rig.new()
    asyncio.run(fresh.tick(1))
    [found] = forecaster(fresh.loop.view, Mode.ACT)(MODEL, Policy(MODEL, k_max=2))
    assert found.gain_ratio is None
    assert found.unknown.startswith("nothing runs")
