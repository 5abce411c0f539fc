"""The gain of a day is the mean of its windows with their interval, whoever led and however often."""

import asyncio
import math

import pytest

from specpilot.bench.simulation.engine import MODEL, POOL
from specpilot.controller.estimation.t_interval import interval
from specpilot.controller.recording.daily_gain import described, gain_ratio_of
from specpilot.controller.recording.explanation import explain, text
from specpilot.policy.gain import DailyGain, day_of
from specpilot.policy.types import Policy
from tests.support.loop_rig import Rig

GAINS = [0.10, 0.14, 0.07, 0.12, 0.11, 0.09]
DAY = "2001-09-09"


def of(gains: list[float], day: str = DAY) -> DailyGain:
    return DailyGain(day, len(gains), sum(gains), sum(gain**2 for gain in gains))


def test_the_sums_of_a_day_tell_the_interval_of_its_windows() -> None:
    found, wanted = gain_ratio_of(of(GAINS)), interval(GAINS, 0.025)
    assert found is not None
    for bound in ("low", "mean", "high"):
        assert found[bound] == pytest.approx(math.expm1(getattr(wanted, bound)))
    assert gain_ratio_of(of(GAINS[:4])) is None
    assert gain_ratio_of(of([0.1] * 9)) == pytest.approx(dict.fromkeys(("low", "mean", "high"), math.expm1(0.1)))


def test_the_leader_counts_every_window_in_its_day_and_so_do_its_successors() -> None:
    rig = Rig.new()
    rig.store.put_policy(Policy(MODEL, hold_out_ratio=0.4), 0, 0.0)
    asyncio.run(rig.tick(200))
    [today] = rig.store.daily_gains(MODEL, POOL)
    assert today.day == day_of(rig.clock.now())
    described_now = rig.store.log[-1].evidence["hold_out"]
    assert today.windows == described_now["windows"] >= 5
    shown = gain_ratio_of(today)
    assert shown is not None
    assert shown["mean"] == pytest.approx(described_now["gain_ratio"]["mean"], rel=1e-4)
    name = f'specpilot_controller_hold_out_day_gain_ratio{{bound="mean",model_name="{MODEL}",pool="{POOL}"}}'
    assert f"{name} {shown['mean']}" in rig.page()
    rig.leadership.release()
    successor = Rig.new("successor", beside=rig)
    asyncio.run(successor.tick(1))
    assert f"{name} {shown['mean']}" in successor.page()
    asyncio.run(successor.tick(100))
    assert rig.store.daily_gains(MODEL, POOL)[0].windows > today.windows
    successor.clock.at += 86_400
    successor.fleet.ran_until = successor.clock.at
    asyncio.run(successor.tick(2))
    assert "specpilot_controller_hold_out_day_gain_ratio{" not in successor.page()


def test_an_explanation_tells_the_days_until_then() -> None:
    rig = Rig.new()
    asyncio.run(rig.tick(5))
    gains = [of(GAINS, "2999-01-01"), of(GAINS, "2001-09-08"), of(GAINS[:2], "2001-09-07")]
    found = explain(rig.store.log[::-1], gains)
    assert found["hold_out_days"] == described(gains[1:])
    told = text(found)
    assert (
        "gain over the static K by day (UTC):\n  2001-09-08: +11.1%, between +8.3% and +13.9% (95 %, 6 windows)" in told
    )
    assert "  2001-09-07: 2 windows, too few for an interval\n" in told
