"""Rows by request: held beside a plain list of what every step left, through moving, forgetting and holding."""

from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specpilot.engine_adapter.vllm import rows as module
from specpilot.engine_adapter.vllm.rows import Rows, handed_over

WIDTH = 2
NAMES = ("a", "b", "c", "d")

adding = st.lists(st.sampled_from(NAMES), min_size=1, unique=True)
repeated = st.tuples(adding, st.integers(1, 6))
forgetting = st.lists(st.sampled_from(NAMES), max_size=2)


def room(size: int, *, can_hold: bool = True) -> Rows:
    return Rows(size, WIDTH, torch.float32, torch.device("cpu"), can_hold=can_hold)


def a_row(number: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The states of two layers and the token of the row that came as the `number`th."""
    return [torch.tensor([[float(number)]]), torch.tensor([[number + 0.5]])], torch.tensor([number], dtype=torch.int32)


def several(numbers: list[int]) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The same of some rows."""
    each = [a_row(number) for number in numbers]
    return [torch.cat([states[layer] for states, _ in each]) for layer in (0, 1)], torch.cat(
        [token for _, token in each]
    )


def found(rows: Rows) -> dict[str, list[int]]:
    """Which rows of which request are there, by the number that is in their states and their tokens."""
    numbers = {}
    for request, places in rows.by_request().items():
        states = rows.states(torch.tensor(places))
        assert states[:, 1].tolist() == [number + 0.5 for number in states[:, 0].tolist()]
        numbers[request] = rows.tokens()[torch.tensor(places)].tolist()
        assert states[:, 0].tolist() == numbers[request]
    return numbers


@pytest.mark.parametrize("can_hold", [True, False])
@pytest.mark.parametrize("together", [3, 1024])
@given(data=st.data())
def test_rows_are_those_that_came_and_were_not_forgotten(can_hold: bool, together: int, data: st.DataObject) -> None:
    with patch.object(module, "ROWS_TOGETHER", together):
        check_what_is_kept(can_hold, data)


def check_what_is_kept(can_hold: bool, data: st.DataObject) -> None:
    size = data.draw(st.integers(len(NAMES), 24))
    rows, expected, number = room(size, can_hold=can_hold), dict[str, list[int]](), 0
    for step in data.draw(st.lists(st.one_of(repeated, forgetting), max_size=12)):
        if isinstance(step, list):
            rows.forget(step)
            expected = {request: own for request, own in expected.items() if request not in step}
        else:
            batch, times = step
            for _ in range(times):
                if rows.used + len(batch) > size:
                    expected = {request: own for request, own in expected.items() if request in batch}
                    if sum(map(len, expected.values())) + len(batch) > size:
                        expected = {}
                numbers = [*range(number, number + len(batch))]
                number += len(batch)
                rows.add(batch, *several(numbers), batch)
                for request, own in zip(batch, numbers, strict=True):
                    expected.setdefault(request, []).append(own)
        if data.draw(st.booleans()):
            assert found(rows) == expected
    assert found(rows) == expected
    assert len(rows) == sum(map(len, expected.values())) <= rows.used <= size


def four_rows() -> Rows:
    """Room for four rows, all in use: of "a" two, of "gone" and "b" one each."""
    rows = room(4)
    for number, request in enumerate(("a", "gone", "a", "b")):
        rows.add([request], *a_row(number), ["a", "gone", "b"])
    return rows


def test_room_is_made_by_moving_together_what_the_batch_has_left() -> None:
    rows = four_rows()
    rows.add(["new"], *a_row(4), ["b", "new", "a"])
    assert rows.by_request() == {"b": [2], "a": [0, 1], "new": [3]}
    assert found(rows) == {"b": [3], "a": [0, 2], "new": [4]}


def test_where_there_is_no_room_all_is_dropped() -> None:
    rows = four_rows()
    rows.add(["b", "new"], *several([4, 5]), ["b", "new", "a"])
    assert found(rows) == {"b": [4], "new": [5]}
    assert rows.used == 2


def test_where_no_row_is_left_the_memory_is_used_from_its_beginning() -> None:
    rows = four_rows()
    rows.forget(["a", "b"])
    assert (found(rows), rows.used) == ({"gone": [1]}, 4)
    rows.forget(["gone", "nobody"])
    assert (len(rows), rows.used) == (0, 0)


def test_what_the_next_step_writes_over_is_not_held() -> None:
    rows = room(100, can_hold=False)
    states, token = a_row(7)
    rows.add(["a"], states, token, ["a"])
    for layer in states:
        layer.fill_(-1.0)
    assert found(rows) == {"a": [7]}


class OfTheHost:
    """A tensor that says what is done with it; there is no CUDA here."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def pin_memory(self) -> "OfTheHost":
        self.done.append("pinned")
        return self

    def to(self, device: Any, *, non_blocking: bool) -> "OfTheHost":
        self.done.append(f"to {device} {'without waiting' if non_blocking else 'and waited'}")
        return self


@pytest.mark.parametrize(
    ("device", "done"), [("cuda:0", ["pinned", "to cuda:0 without waiting"]), ("cpu", ["to cpu without waiting"])]
)
def test_what_goes_to_a_gpu_goes_from_pinned_memory(device: str, done: list[str]) -> None:
    tensor: Any = OfTheHost()
    assert handed_over(tensor, torch.device(device)).done == done
