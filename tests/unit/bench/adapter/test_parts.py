"""Steps with a part of the adapter and without it: the difference is found, and no replacement stays."""

import random
import statistics
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from specpilot.bench.adapter import parts as adapter_parts
from specpilot.bench.adapter.parts import STEPS_IN_A_PIECE, Pair, cost, leaving_out


def noisy_pairs(part_us: float, count: int = 300) -> list[Pair]:
    """Steps of 2 to 4 ms, `part_us` more with the part; the speed changes between pairs, and sometimes within one."""
    rng = random.Random(7)
    pairs: list[Pair] = []
    for _ in range(count):
        pace = rng.uniform(0.002, 0.004)
        with_it, without = (pace + rng.gauss(0.0, 4e-5) + 0.0005 * (rng.random() < 0.2) for _ in range(2))
        pairs.append(Pair(with_it + 1e-6 * part_us, without))
    return pairs


@pytest.mark.parametrize("part_us", [-60.0, 0.0, 40.0])
def test_what_a_part_takes_is_found_within_its_interval(part_us: float) -> None:
    found = cost(noisy_pairs(part_us))
    assert found.part.low <= part_us <= found.part.high
    assert found.part.high - found.part.low < 25.0
    assert found.part.median == pytest.approx(part_us, abs=12.0)
    assert found.step == pytest.approx(3000.0 + part_us, abs=200.0)
    assert found.ratio.low <= 1.0 - part_us / 3000.0 <= found.ratio.high
    assert found.ratio.high - found.ratio.low < 0.01
    assert found.pairs == 300


def test_without_pairs_there_is_no_cost() -> None:
    with pytest.raises(statistics.StatisticsError):
        cost([])


def stepped(step: Callable[[], None], core: Any = None, running: Callable[[], int] = lambda: 1) -> Any:
    """Stands in for vLLM with this `core`: each of its steps is `step`, and `running` requests run."""

    class Engine:
        engine_core = SimpleNamespace(engine_core=core)

        def get_num_unfinished_requests(self) -> int:
            return running()

        def step(self) -> None:
            step()

    return SimpleNamespace(llm_engine=Engine())


class Part:
    """An object whose method is omitted in steps."""

    def __init__(self) -> None:
        self.called = 0

    def work(self) -> None:
        self.called += 1


def test_a_part_is_left_out_of_one_of_two_pieces_and_nothing_stays_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    part = Part()
    monkeypatch.setitem(adapter_parts.PARTS, "work", lambda core: [(core, "work", lambda: None)])
    llm = stepped(lambda: part.work(), part)  # noqa: PLW0108 - what is there at the time of the step
    pieces: list[int] = []
    with leaving_out(llm, "work", seed=1) as pairs:
        for _ in range(40):
            before = part.called
            for _ in range(STEPS_IN_A_PIECE):
                llm.llm_engine.step()
            pieces.append(part.called - before)
    assert {tuple(pieces[i : i + 2]) for i in range(0, 40, 2)} == {(STEPS_IN_A_PIECE, 0), (0, STEPS_IN_A_PIECE)}
    assert len(pairs) == 20 - 1  # the first has the prefill
    assert all(min(pair) > 0.0 for pair in pairs)
    llm.llm_engine.step()
    assert (len(pairs), vars(llm.llm_engine), set(vars(part))) == (19, {}, {"called"})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, of what vLLM imports
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_steps_without_the_adapter_draft_k_max_tokens_whatever_the_reply_before_ended_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The drafter of the CPU ended the engine with the 0 slots that its last step had left."""
    from vllm.v1.core.sched.scheduler import Scheduler  # noqa: PLC0415 - under the filters

    monkeypatch.setattr(Scheduler, "_update_after_schedule", lambda *_: None)
    monkeypatch.setattr(adapter_parts, "_drafting", lambda _: SimpleNamespace(backlog=None))
    core = SimpleNamespace(scheduler=SimpleNamespace(control=SimpleNamespace(k_max=7)))
    replaced = {name: other for _, name, other in adapter_parts.PARTS[adapter_parts.AT_K_MAX](core)}
    output = SimpleNamespace(num_spec_tokens_to_schedule=0)
    replaced["_update_after_schedule"](output)
    assert output.num_spec_tokens_to_schedule == 7


def test_the_time_of_a_step_counts_for_the_piece_that_it_belongs_to(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0)
    part = SimpleNamespace(work=lambda: setattr(clock, "now", clock.now + 0.5))

    def step() -> None:
        clock.now += 2.0
        part.work()

    monkeypatch.setitem(adapter_parts.PARTS, "work", lambda core: [(core, "work", lambda: None)])
    monkeypatch.setattr(adapter_parts, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    llm = stepped(step, part)
    with leaving_out(llm, "work", seed=1) as pairs:
        for _ in range(4 * 2 * STEPS_IN_A_PIECE - 1):
            llm.llm_engine.step()
    assert pairs == [Pair(2.5, 2.0)] * 2  # the last one did not end


def test_pairs_are_of_steps_in_which_all_requests_run(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[None] = []
    monkeypatch.setitem(adapter_parts.PARTS, "nothing", lambda core: [])
    llm = stepped(lambda: steps.append(None), running=lambda: 3 if len(steps) < 3 * 2 * STEPS_IN_A_PIECE else 2)
    with leaving_out(llm, "nothing", seed=1) as pairs:
        for _ in range(6 * 2 * STEPS_IN_A_PIECE):
            llm.llm_engine.step()
    assert len(pairs) == 1  # the second; the first has the prefill, and with the third's last step a request ends
