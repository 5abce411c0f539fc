"""Which cells there are, and that arms take turns."""

from collections import Counter

import pytest

from specpilot.bench.sweep.plan import Arm, Cell, Load, plan

ARMS = [Arm("none"), Arm("eagle3", 3), Arm("p-eagle", 3), Arm("p-eagle", 7)]
LOADS = [Load(concurrency=1), Load(concurrency=8)]


@pytest.mark.parametrize("one_at_a_time", [False, True])
def test_every_cell_is_measured_once(one_at_a_time: bool) -> None:
    cells = plan(ARMS, ["code", "chat"], LOADS, 3, one_at_a_time=one_at_a_time)
    assert len(cells) == len(set(cells)) == 4 * 2 * 2 * 3
    assert len({cell.name for cell in cells}) == len(cells)


def test_arms_that_are_compared_stand_beside_one_another() -> None:
    cells = plan(ARMS, ["code", "chat"], LOADS, 3)
    for start in range(0, len(cells), len(ARMS)):
        block = cells[start : start + len(ARMS)]
        assert len({(cell.data_set, cell.load, cell.repetition) for cell in block}) == 1
        assert {cell.arm for cell in block} == set(ARMS)


def test_no_arm_is_always_first() -> None:
    cells = plan(ARMS, ["code", "chat"], LOADS, 4)
    first = Counter(cell.arm for cell in cells[:: len(ARMS)])
    assert len(first) == len(ARMS)


def test_one_at_a_time_an_engine_starts_once_a_repetition() -> None:
    cells = plan(ARMS, ["code"], LOADS, 2, one_at_a_time=True)
    for repetition in (1, 2):
        systems = [cell.arm.system for cell in cells if cell.repetition == repetition]
        starts = [b for a, b in zip(["", *systems], systems, strict=False) if a != b]
        assert sorted(starts) == ["eagle3", "none", "p-eagle"]


def test_names_say_what_a_cell_is() -> None:
    assert Cell(Arm("p-eagle", 7), "code", Load(concurrency=8), 2).name == "p-eagle-k7__code__c8__2"
    assert Arm("adaptive", goal_ms=20.0).name == "adaptive-goal20"
    assert Cell(Arm("none"), "code", Load(request_rate=2.5), 1).name == "none__code__r2.5__1"


def test_a_cell_has_enough_requests_for_those_in_flight() -> None:
    assert [Load(concurrency=n).requests(12) for n in (1, 4, 32)] == [12, 12, 96]
    assert Load(request_rate=2.0).requests(12) == 12
