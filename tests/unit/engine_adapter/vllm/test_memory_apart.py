"""The rig of `tests.support.memory_apart` shows what a CPU hides; `test_exact` shows that it finds early changes."""

import pytest
import torch

from tests.support.memory_apart import GARBAGE, Copies, Event, Stream, stream


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32, torch.bool])
def test_a_copy_to_the_host_arrives_when_its_event_is_waited_for(dtype: torch.dtype) -> None:
    host, copies, ready, later = torch.tensor([1, 0], dtype=dtype), Stream(), Event(), Event()
    other = torch.zeros_like(host)
    with Copies():
        assert host.to("cpu") is host  # whoever waits is left alone
        device = host.to("cpu", non_blocking=True)
        host.logical_not_()
        with stream(copies):
            copied = device.to("cpu", non_blocking=True)
            ready.record()
            other.copy_(device, non_blocking=True)
            later.record()
    assert device.tolist() == [1, 0]  # another tensor than its source
    assert copied.tolist() != [1, 0]
    assert copied.tolist() == [GARBAGE, GARBAGE] or dtype not in (torch.int32, torch.int64)
    ready.synchronize()
    assert copied.tolist() == [1, 0] != other.tolist()
    later.synchronize()
    later.synchronize()
    assert other.tolist() == [1, 0]
