import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import pytest

from specpilot.controller.estimation.observation import Evidence, Snapshot
from specpilot.controller.experiments.blocks import GAP_S, BlockSums
from specpilot.controller.experiments.canary import window_at
from specpilot.controller.tuning import Tuning
from specpilot.policy.canary import Arm, Canary, Experiment, Lost
from specpilot.policy.model_policy import Policy

CANARY = Canary(Policy("m"), window_s=10.0, min_duration_s=60.0, max_duration_s=600.0)
START = 1000.0


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
        decodes_by={"decode": drafts},
        running={"code": float(decodes)},
    )


def snapshot(at: float, found: Evidence, left_s: float = 0.0) -> Snapshot:
    return Snapshot(at, 1.0, found, found.step_seconds + left_s)


def written(before: Experiment, after: Experiment) -> Experiment:
    """What is stored then: a change gets a new version."""
    return after if after is before else replace(after, version=before.version + 1)


def play(
    ticks: range,
    by_arm: dict[Arm, Evidence],
    experiment: Experiment | None = None,
    silent: range = range(0),
    pools: tuple[str, ...] = ("p",),
    begin_s: float = 0.0,
    delay_s: float = 0.0,
    left_s: Mapping[Arm, float] = MappingProxyType({}),
) -> Experiment:
    found = experiment or Experiment(1, "id", CANARY, 0, START - begin_s)
    sums = BlockSums()
    for tick in ticks:
        at = START + tick + 0.5
        if tick in silent:
            continue
        found = written(found, sums.roll(found, at))
        for pool in pools:
            now, seen = window_at(found, pool, at), window_at(found, pool, at - delay_s)
            assert now is not None
            assert seen is not None
            sums.add(pool, now, at, snapshot(at - delay_s, by_arm[seen.arm], left_s.get(seen.arm, 0.0)))
        sums.end_tick(at)
    return found


PLAIN = {Arm.PRESENT: evidence(), Arm.CANARY: evidence(1.2)}


def test_a_block_yields_the_ratio_of_throughput_and_latency() -> None:
    found = play(range(41), PLAIN)
    assert [block.index for block in found.blocks] == [0, 1]
    for block in found.blocks:
        assert block.pools["p"].throughput == pytest.approx(math.log(1.2), abs=1e-6)
        assert block.pools["p"].itl == pytest.approx(math.log(1.2), abs=1e-6)
        assert block.pools["p"].busy_s == pytest.approx(16.0)


def test_fewer_running_decodes_show_in_the_latency_and_not_in_the_throughput() -> None:
    """Requests that arrive by themselves: the faster policy has half as many at a time, and delivers what arrives."""
    by_arm = {Arm.PRESENT: evidence(1.0, 8), Arm.CANARY: evidence(2.0, 4)}
    (block,) = play(range(21), by_arm).blocks
    assert block.pools["p"].throughput == pytest.approx(0.0)
    assert block.pools["p"].itl == pytest.approx(math.log(2.0), abs=1e-6)


def test_what_k_0_leaves_counts_in_the_corrected_throughput_alone() -> None:
    owing = {Arm.PRESENT: evidence(), Arm.CANARY: evidence()}
    found = play(range(41), owing, left_s={Arm.PRESENT: 0.0, Arm.CANARY: 0.1})
    for block in found.blocks:
        _, throughput, itl, corrected = block.pools["p"]
        assert (throughput, itl) == (pytest.approx(0.0), pytest.approx(0.0))
        assert corrected == pytest.approx(-math.log(1.1), abs=1e-5)
    assert found.blocks


def test_a_block_with_too_little_traffic_is_lost() -> None:
    few = replace(evidence(), steps_by={"decode": Tuning().window_steps / 10}, seconds_by={"decode": 0.1})
    for by_arm in ({**PLAIN, Arm.CANARY: few}, {**PLAIN, Arm.PRESENT: Evidence()}):
        found = play(range(21), by_arm)
        assert (found.blocks, found.lost) == ((), {Lost.NO_TRAFFIC: 1})


def test_a_pause_loses_the_block_it_falls_in() -> None:
    silent = range(24, 24 + int(GAP_S) + 1)
    found = play(range(61), PLAIN, silent=silent)
    assert [block.index for block in found.blocks] == [0, 2]
    assert found.lost == {Lost.INTERRUPTED: 1}
    assert not play(range(61), PLAIN, silent=range(24, 27)).lost


def test_ticks_that_are_five_seconds_apart_and_a_little_are_no_pause() -> None:
    slow, sums = Experiment(1, "id", replace(CANARY, window_s=30.0), 0, START), BlockSums(interval_s=5.0)
    for tick in range(60):
        slow = written(slow, sums.roll(slow, START + 5.01 * tick))
        sums.end_tick(START + 5.01 * tick)
    assert Lost.INTERRUPTED not in slow.lost


def test_whoever_begins_within_a_block_does_not_count_it() -> None:
    found = play(range(30), PLAIN, begin_s=8.0)
    assert [block.index for block in found.blocks] == []
    assert found.lost == {Lost.INTERRUPTED: 1}


def test_pools_are_measured_apart_and_one_without_traffic_is_left_out() -> None:
    found = play(range(21), PLAIN, pools=("a", "b"))
    assert set(found.blocks[0].pools) == {"a", "b"}


def test_what_a_slow_source_shows_late_counts_for_the_window_it_happened_in() -> None:
    found = play(range(4, 45), PLAIN, begin_s=-4.0, delay_s=3.0, experiment=Experiment(1, "id", CANARY, 0, START + 1.0))
    assert all(block.pools["p"].throughput == pytest.approx(math.log(1.2), abs=1e-6) for block in found.blocks)
    assert found.blocks


def test_nothing_is_counted_after_the_last_block() -> None:
    short = Experiment(1, "id", replace(CANARY, max_duration_s=60.0), 0, START - 46.0)
    sums = BlockSums()
    for tick in range(30):
        short = written(short, sums.roll(short, START + tick))
        sums.end_tick(START + tick)
    assert short.lost == {Lost.INTERRUPTED: 1}
