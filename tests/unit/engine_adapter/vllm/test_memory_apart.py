"""The rig of `tests.support.memory_apart` shows what a CPU hides."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.support import memory_apart
from tests.support.memory_apart import GARBAGE, SEEN, Copies, Event, Stream, stream


@pytest.fixture(autouse=True)
def _apart() -> Iterator[None]:
    memory_apart._DEFAULT.begun.clear()
    with Copies():
        yield


def test_what_is_sent_is_another_tensor() -> None:
    host = torch.tensor([1, 2])
    device = host.to("cpu", non_blocking=True)
    host.fill_(7)
    assert device.tolist() == [1, 2]
    assert host.to("cpu") is host  # whoever waits is left alone


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32, torch.bool])
def test_a_copy_to_the_host_arrives_when_its_event_is_waited_for(dtype: torch.dtype) -> None:
    device, copies, ready, later = torch.tensor([1, 0], dtype=dtype), Stream(), Event(), Event()
    host = torch.zeros(2, dtype=dtype)
    with stream(copies):
        copied = device.to("cpu", non_blocking=True)
        ready.record()
        host.copy_(device, non_blocking=True)
        later.record()
    late = SEEN.late
    assert copied.tolist() != [1, 0]
    ready.synchronize()
    assert copied.tolist() == [1, 0]
    assert host.tolist() != [1, 0]
    later.synchronize()
    later.synchronize()
    assert host.tolist() == [1, 0]
    assert SEEN.late == late + 2


def test_until_then_the_host_reads_what_is_no_tokens_id() -> None:
    with stream(Stream()):
        assert torch.tensor([5]).to("cpu", non_blocking=True).tolist() == [GARBAGE]
    assert memory_apart._current is memory_apart._DEFAULT


@pytest.mark.parametrize(("when", "count"), [("before", 1), ("after", 0)])
def test_a_source_that_changes_before_the_device_has_read_it_is_counted(when: str, count: int) -> None:
    SEEN.changed.clear()
    sent, host, event = SEEN.sent, torch.tensor([1, 2]), Event()
    torch.zeros(2, dtype=torch.int64).copy_(host, non_blocking=True)
    event.record()
    if when == "after":
        event.synchronize()
    host[0] = 3
    event.synchronize()
    assert (SEEN.sent - sent, sum(SEEN.changed.values())) == (1, count)
    assert all(Path(place.rpartition(":")[0]) == Path(__file__) for place in SEEN.changed)
