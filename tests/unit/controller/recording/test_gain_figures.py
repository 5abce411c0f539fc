"""The gain of a day is the mean of its windows with their interval, whoever led and however often."""

import math

import pytest

from specpilot.controller.estimation.t_interval import interval
from specpilot.controller.recording.explanation import explain
from specpilot.controller.recording.gain_figures import described, gain_ratio_of
from specpilot.policy.gain import DailyGain, GainSums, day_of
from specpilot.policy.model_policy import Policy
from tests.simulation.engine import MODEL, POOL
from tests.support.loop_rig import Rig, text

GAINS = [0.10, 0.14, 0.07, 0.12, 0.11, 0.09]
DAY = "2001-09-09"


def sums(gains: list[float]) -> GainSums:
    return GainSums(len(gains), sum(gains), sum(gain**2 for gain in gains))


def of(gains: list[float], day: str = DAY) -> DailyGain:
    """A day in which the gain in latency was half of that in throughput."""
    return DailyGain(day, sums(gains), sums([gain / 2 for gain in gains]))


def test_the_sums_of_a_day_tell_the_interval_of_its_windows() -> None:
    for measure, gains in (("throughput", GAINS), ("itl", [gain / 2 for gain in GAINS])):
        assert gain_ratio_of(of(GAINS), measure) == pytest.approx(interval(gains, 0.025).ratios())
        assert gain_ratio_of(of(GAINS[:4]), measure) is None
    same = dict.fromkeys(("low", "mean", "high"), math.expm1(0.1))
    assert gain_ratio_of(of([0.1] * 9), "throughput") == pytest.approx(same)


async def test_the_leader_counts_every_window_in_its_day_and_so_do_its_successors(rig: Rig) -> None:
    rig.store.put_policy(Policy(MODEL, control_group_ratio=0.4), 0, 0.0)
    await rig.tick(80)
    [today] = rig.store.daily_gains(MODEL, POOL)
    assert today.day == day_of(rig.clock.now())
    described_now = rig.store.log[-1].evidence["control_group"]
    assert today.throughput.windows == today.itl.windows == described_now["windows"] >= 5
    lines = []
    for measure, decides in (("throughput", "true"), ("itl", "false")):
        shown, latest = gain_ratio_of(today, measure), described_now[f"{measure}_gain_ratio"]["mean"]
        assert shown is not None
        assert shown["mean"] == pytest.approx(latest, rel=1e-4)
        labels = f'measure="{measure}",model_name="{MODEL}",pool="{POOL}"}}'
        lines.append(f'specpilot_controller_control_group_day_gain_ratio{{bound="mean",{labels} {shown["mean"]}\n')
        assert lines[-1] in rig.page()
        assert f'control_group_gain_ratio{{bound="mean",decides="{decides}",{labels} {latest}\n' in rig.page()
    rig.leadership.release()
    successor = Rig.new("successor", beside=rig)
    await successor.tick(1)
    assert all(line in successor.page() for line in lines)
    await successor.tick(40)
    assert rig.store.daily_gains(MODEL, POOL)[0].itl.windows > today.itl.windows
    successor.clock.at += 86_400
    successor.fleet.ran_until = successor.clock.at
    await successor.tick(2)
    assert "specpilot_controller_control_group_day_gain_ratio{" not in successor.page()


async def test_an_explanation_tells_the_days_until_then(rig: Rig) -> None:
    await rig.tick(5)
    of_before = DailyGain("2001-09-06", sums(GAINS))  # as a controller counted that knew one measure
    gains = [of(GAINS, "2999-01-01"), of(GAINS, "2001-09-08"), of(GAINS[:2], "2001-09-07"), of_before]
    found = explain(rig.store.log[-1], gains)
    assert found["control_group_days"] == described(gains[1:])
    told = text(found)
    throughput = "throughput +11.1%, between +8.3% and +13.9%"
    both = f"{throughput}; inter-token latency +5.4%, between +4.1% and +6.7%"
    assert f"gain over the static K by day (UTC):\n  2001-09-08: {both} (95 %, 6 windows)\n" in told
    assert "  2001-09-07: 2 windows, too few for an interval\n" in told
    assert f"  2001-09-06: {throughput} (95 %, 6 windows)\n" in told
