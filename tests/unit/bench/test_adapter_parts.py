"""Steps with a part of the adapter and without it: told apart, and nothing stays replaced."""

import random
import statistics
from types import SimpleNamespace
from typing import Any

import pytest

from bench import adapter_parts
from bench.adapter_parts import Step, cost, leaving_out


def noisy_steps(part_us: float, count: int = 2000) -> list[Step]:
    """Steps of 2 ms and `part_us` more with the part; now and then the machine takes a while."""
    rng = random.Random(7)
    steps: list[Step] = []
    for _ in range(count):
        without = rng.random() < 0.5
        seconds = 0.002 + (0.0 if without else 1e-6 * part_us) + rng.gauss(0.0, 5e-5) + 0.004 * (rng.random() < 0.05)
        steps.append(Step(without, seconds))
    return steps


@pytest.mark.parametrize("part_us", [-60.0, 0.0, 40.0])
def test_what_a_part_takes_is_found_within_its_interval(part_us: float) -> None:
    found = cost(noisy_steps(part_us))
    assert found.low <= part_us <= found.high
    assert found.high - found.low < 25.0
    assert found.part == pytest.approx(part_us, abs=12.0)
    assert found.step == pytest.approx(2000.0 + part_us, abs=12.0)


def test_without_steps_of_both_kinds_there_is_no_cost() -> None:
    with pytest.raises(statistics.StatisticsError):
        cost([Step(without=True, seconds=0.002)])


class Part:
    """An object whose method is left out of steps."""

    def __init__(self) -> None:
        self.called = 0

    def work(self) -> None:
        self.called += 1


def test_a_part_is_left_out_of_about_half_of_the_steps_and_nothing_stays_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    part = Part()

    class Engine:
        engine_core = SimpleNamespace(engine_core=part)

        def step(self) -> None:
            part.work()

    def replacements(core: Any) -> list[tuple[Any, str, Any]]:
        return [(core, "work", lambda: None)]

    monkeypatch.setitem(adapter_parts.PARTS, "work", replacements)
    llm = SimpleNamespace(llm_engine=Engine())
    with leaving_out(llm, "work", seed=1) as steps:
        for _ in range(200):
            llm.llm_engine.step()
    assert len(steps) == 200
    assert part.called == sum(not step.without for step in steps)
    assert 70 < part.called < 130
    llm.llm_engine.step()
    assert (len(steps), vars(llm.llm_engine), set(vars(part))) == (200, {}, {"called"})
