"""Switchback experiments: what a block of windows yields, and which windows do not count."""

import math
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specpilot.controller.estimation.observation import Evidence, Snapshot
from specpilot.controller.estimation.switchback import (
    NEAR_WINDOWS,
    WINDOW_STEPS,
    BlockGain,
    Plan,
    Switchback,
    UnitState,
)
from specpilot.controller.estimation.t_interval import interval

START = 1000.0
PLAN = Plan("id", 2, 10.0, START)


def evidence(rate: float = 1.0, decodes: int = 8) -> Evidence:
    """A hundred steps of `decodes` decodes and 10 ms, twice as many tokens as drafts, times `rate`."""
    drafts = 100.0 * decodes
    return Evidence(
        trials={},
        accepts={},
        drafts={("code", 4, 1): drafts},
        decode_tokens={("code", 4): 2 * drafts * rate},
        steps_by={"decode": 100.0},
        seconds_by={"decode": 1.0},
        running={"code": float(decodes)},
    )


USUAL, ALTERNATIVE = False, True
PLAIN = {USUAL: evidence(), ALTERNATIVE: evidence(1.2)}


def play(
    ticks: Iterable[int],
    by_arm: Mapping[bool, Evidence],
    plan: Plan = PLAN,
    *,
    delay_s: float = 0.0,
    in_force: Callable[[int, bool], bool | None] = lambda _, drawn: drawn,
) -> list[BlockGain]:
    """Return the gains over `ticks`, one a second, each with a snapshot that ended `delay_s` before.

    `in_force` returns the arm in force at a tick, from the planned one.
    """
    subject, gains = Switchback(), []
    for tick in ticks:
        at = START + tick + 0.5
        seen = plan.is_drawn("p", at - delay_s)
        found = by_arm[seen]
        snapshot = Snapshot(at, 1.0, found)
        gains += subject.add_tick(
            plan, {"p": UnitState(snapshot, at - delay_s, in_force(tick, plan.is_drawn("p", at)))}, at
        )
    return gains


@given(st.integers(0, 10**6), st.integers(0, 20), st.integers(2, 12))
def test_each_block_has_one_drawn_window(seed: int, block: int, windows: int) -> None:
    plan = Plan(str(seed), windows, 20.0, 1000.0)
    slots = [1000.0 + (block * windows + slot + 0.5) * 20.0 for slot in range(windows)]
    assert [plan.window(at) for at in slots] == list(range(block * windows, (block + 1) * windows))
    assert sum(plan.is_drawn("p", at) for at in slots) == 1
    assert all(plan.window_end(one) == pytest.approx(other - 10.0) for one, other in pairwise(slots))


def test_a_block_yields_the_ratio_of_throughput_and_latency() -> None:
    found = play(range(41), PLAIN)
    assert [block.block for block in found] == [0, 1]
    for block in found:
        assert block.gain is not None
        assert block.gain == pytest.approx((math.log(1.2), math.log(1.2)))
        assert block.busy_s == pytest.approx(16.0)


def test_a_drawn_window_is_compared_with_those_nearby_in_its_block() -> None:
    plan, rates = Plan("id", 20, 10.0, START), {USUAL: evidence(), ALTERNATIVE: evidence(1.2)}
    (block,) = play(range(201), rates, plan)
    drawn = next(slot for slot in range(20) if plan.is_drawn("p", START + slot * 10.0))
    others = len([slot for slot in range(20) if slot != drawn and abs(slot - drawn) <= NEAR_WINDOWS])
    assert block.busy_s == pytest.approx(8.0 * (1 + others))


def test_fewer_running_decodes_show_in_the_latency_and_not_in_the_throughput() -> None:
    """Requests that arrive by themselves: the faster way has half as many at a time, and delivers what arrives."""
    (block,) = play(range(21), {USUAL: evidence(1.0, 8), ALTERNATIVE: evidence(2.0, 4)})
    assert block.gain is not None
    assert block.gain == pytest.approx((0.0, math.log(2.0)))


def test_a_block_with_too_little_traffic_has_no_gain() -> None:
    few = replace(evidence(), steps_by={"decode": WINDOW_STEPS / 10}, seconds_by={"decode": 0.1})
    for by_arm in ({**PLAIN, ALTERNATIVE: few}, {**PLAIN, USUAL: Evidence()}):
        (block,) = play(range(21), by_arm)
        assert (block.block, block.gain) == (0, None)


@pytest.mark.parametrize("wrong", [None, True, False])
def test_a_window_in_which_the_planned_way_was_not_in_force_loses_its_block(wrong: bool | None) -> None:
    """A freeze, another policy, or a schedule that was not published: for one tick of the second block."""
    found = play(range(61), PLAIN, in_force=lambda tick, drawn: drawn if tick != 25 or drawn is wrong else wrong)
    lost = wrong is None or wrong is not PLAN.is_drawn("p", START + 25.5)
    assert [block.block for block in found] == ([0, 2] if lost else [0, 1, 2])


def test_a_pause_loses_the_block_in_which_a_window_is_missing() -> None:
    found = play([tick for tick in range(61) if not 28 <= tick < 40], PLAIN)
    assert [block.block for block in found] == [0, 2]


def test_a_snapshot_that_arrives_late_counts_for_the_window_in_which_it_ended() -> None:
    found = play(range(4, 45), PLAIN, delay_s=3.0)
    assert found
    for block in found:
        assert block.gain is not None
        assert block.gain == pytest.approx((math.log(1.2), math.log(1.2)))


@pytest.mark.parametrize("windows", [2, 3, 5])
def test_the_interval_over_blocks_holds_at_every_share_although_neighbouring_windows_resemble_one_another(
    windows: int,
) -> None:
    """Without a difference: of 300 intervals of 95 % about 15 miss 0, and more than 27 with a probability of 0.2 %."""
    misses, blocks = 0, 20
    for seed in range(300):
        rng, plan, subject = random.Random(seed), Plan(str(seed), windows, 4.0), Switchback()
        gains, level = [], 0.0
        for index in range(blocks * windows + 1):
            level = 0.8 * level + rng.gauss(0.0, 0.03)
            begun_at = 4.0 * index
            found = evidence(math.exp(level + rng.gauss(0.0, 0.02)))
            is_drawn = plan.is_drawn("p", begun_at)
            for at, snapshot in ((begun_at, None), (begun_at + 3.0, Snapshot(begun_at + 3.0, 1.0, found))):
                gains += subject.add_tick(plan, {"p": UnitState(snapshot, at, is_drawn)}, at)
        throughput = [block.gain.throughput for block in gains if block.gain]
        assert len(throughput) == blocks
        bounds = interval(throughput, 0.025)
        misses += not bounds.low <= 0.0 <= bounds.high
    assert misses <= 27


def test_a_snapshot_that_is_seen_in_several_ticks_counts_once() -> None:
    """The steady and the Unix clock are read one after the other, so the end of a snapshot wavers."""
    subject, few = Switchback(), replace(evidence(), steps_by={"decode": 15.0}, seconds_by={"decode": 0.15})
    gains = []
    for tick in range(42):
        at = START + 0.5 * tick + 0.25
        window = START + 10.0 * PLAN.window(at)
        snapshot = Snapshot(window + 5.0, 1.0, few)
        seen = UnitState(snapshot, snapshot.at + 1e-6 * tick, PLAN.is_drawn("p", at))
        gains += subject.add_tick(PLAN, {"p": seen if at > window + 5.0 else seen._replace(snapshot=None)}, at)
    assert [block.gain for block in gains] == [None]


def test_another_plan_begins_anew() -> None:
    subject = Switchback()
    for tick in range(15):
        at = START + tick + 0.5
        subject.add_tick(PLAN, {"p": UnitState(None, at, PLAN.is_drawn("p", at))}, at)
    other = PLAN._replace(seed="other")
    assert subject.add_tick(other, {"p": UnitState(None, START + 25.0, False)}, START + 25.0) == []
