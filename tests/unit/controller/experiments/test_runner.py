"""The blocks of a canary in one controller: when they count, when they are lost, and when the experiment ends."""

from dataclasses import replace

import pytest

from specpilot.controller.decision.context import PoolContext, TickResult
from specpilot.controller.decision.reason import Reason
from specpilot.controller.estimation.switchback import BlockGain
from specpilot.controller.experiments.runner import Runner
from specpilot.policy.canary import Block, Canary, Experiment, Gain, Lost, Outcome
from specpilot.policy.gain import LogGain
from specpilot.policy.model_policy import Policy

START = 1000.0
CANARY = Canary(Policy("m"), window_s=10.0, min_duration_s=80.0, max_duration_s=80.0)  # four blocks of two windows
GAIN = LogGain(0.2, 0.1)


def tick_result(*gains: BlockGain) -> TickResult:
    return TickResult(Reason.ADAPTIVE, None, {}, canary_gains=gains)


def play(seconds: range, gains: dict[int, BlockGain], frozen: range = range(0), *, has_pool: bool = True) -> Experiment:
    """Tick each second; `gains` are those that the pool completes, by the second."""
    runner, found = Runner(), Experiment(1, "id", CANARY, 0, START)
    for second in seconds:
        at = START + second + 0.5
        found = next(iter(runner.judge([found], {}, at)), found)
        if has_pool and second not in frozen:
            runner.add(found, tick_result(*([gains[second]] if second in gains else [])))
        runner.end_tick([found], {"m"} if has_pool else (), {"m"} if second in frozen else (), at)
    return found


def gain(block: int, found: LogGain | None = GAIN, pool: str = "p") -> BlockGain:
    return BlockGain(pool, block, found, 16.0)


def test_a_block_counts_with_the_gain_of_each_pool_that_has_one() -> None:
    found = play(range(30), {20: gain(0)})
    assert found.blocks == (Block(0, {"p": Gain(16.0, 0.2, 0.1)}),)
    assert (found.version, found.lost) == (2, {})


def test_a_block_without_traffic_and_one_that_did_not_go_as_planned_are_lost() -> None:
    assert play(range(30), {20: gain(0, None)}).lost == {Lost.NO_TRAFFIC: 1}
    assert play(range(30), {}).lost == {Lost.INTERRUPTED: 1}  # the schedule in force was not the planned one
    assert play(range(30), {}, has_pool=False).lost == {Lost.NO_TRAFFIC: 1}
    assert play(range(30), {20: gain(0, None)}, frozen=range(12, 25)).lost == {Lost.INTERRUPTED: 1}


def test_a_controller_that_begins_later_loses_the_blocks_that_nobody_measured() -> None:
    found = play(range(50, 75), {60: gain(2)})
    assert (found.lost, [block.index for block in found.blocks]) == ({Lost.INTERRUPTED: 2}, [2])


def test_it_ends_when_its_last_block_is_over() -> None:
    running = play(range(81), {20 * (block + 1): gain(block) for block in range(4)})
    assert (running.outcome, len(running.blocks)) == (None, 3)
    ended = play(range(82), {20 * (block + 1): gain(block) for block in range(4)})
    assert (ended.outcome, len(ended.blocks)) == (Outcome.BETTER, 4)
    assert play(range(82), {20 * (block + 1): gain(block, None) for block in range(4)}).outcome is Outcome.NO_TRAFFIC


def test_blocks_that_are_closed_together_are_tested_one_by_one() -> None:
    """After a time without a leader: the promotion at the third block is not left out."""
    runner, canary = Runner(), replace(CANARY, min_duration_s=0.0, max_duration_s=200.0)
    found = Experiment(1, "id", canary, 0, START)
    runner.add(found, tick_result(*(gain(block, GAIN.times(1.0 + 0.01 * block)) for block in range(5))))
    runner.end_tick([found], {"m"}, (), START + 100.5)
    (ended,) = runner.judge([found], {}, START + 101.5)
    assert (ended.outcome, len(ended.blocks)) == (Outcome.BETTER, 3)


@pytest.mark.parametrize("stored", [0, 1])
def test_a_block_is_closed_until_it_is_stored(stored: int) -> None:
    """A write may fail; then the next tick closes the same block again."""
    runner, found = Runner(), Experiment(1, "id", CANARY, 0, START)
    runner.add(found, tick_result(gain(0)))
    runner.end_tick([found], {"m"}, (), START + 20.5)
    (written,) = runner.judge([found], {}, START + 21.5)
    known = replace(written, version=2) if stored else found
    assert [len(item.blocks) for item in runner.judge([known], {}, START + 22.5)] == ([] if stored else [1])


def test_the_state_does_not_grow_with_the_number_of_canaries() -> None:
    runner = Runner()
    context = PoolContext("m", "p", Policy("m"), 7, 3, None)
    for number in range(100):  # each ends unseen, while the pool has no engines
        experiment = Experiment(1, str(number), Canary(Policy("m")), 0, 0.0)
        runner.reported(experiment, context, tick_result())
        runner.add(experiment, tick_result(gain(0)))
        runner.end_tick([experiment], {"m"}, (), 1.0)
    assert len(runner._running) == len(runner._records) == 1
