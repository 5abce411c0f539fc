"""What vLLM's communication between CPUs lacks for the experts of data-parallel ranks: exchanges of unequal parts.

`--worker-extension-cls tests.support.cpu_experts.Extension` makes each worker import this module, which adds them.
"""

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor, cat
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator


class Extension:
    """Adds nothing to a worker."""


def all_gatherv(self: Any, parts: Any, dim: int = 0, sizes: Sequence[int] | None = None) -> Any:
    """Return the parts of all ranks, one after the other; those of rank r have `sizes[r]` rows."""
    assert dim == 0
    if isinstance(parts, list):
        return [all_gatherv(self, part, dim, sizes) for part in parts]
    counts = sizes or [len(parts)] * self.world_size
    whole = [parts.new_empty(count, *parts.shape[1:]) for count in counts]
    whole[self.rank_in_group] = parts.contiguous()
    for part, rank in zip(whole, self.ranks, strict=True):
        dist.broadcast(part, src=rank, group=self.device_group)
    return cat(whole)


def reduce_scatterv(self: Any, whole: Tensor, dim: int = 0, sizes: Sequence[int] | None = None) -> Tensor:
    """Return this rank's part of the sum over all ranks."""
    assert dim == 0
    total = whole.contiguous()
    dist.all_reduce(total, group=self.device_group)
    return total.split(sizes or len(total) // self.world_size)[self.rank_in_group].clone()


def reduce_scatterv_into_output(
    self: Any, whole: Tensor, output: Tensor, dim: int = 0, sizes: Sequence[int] | None = None
) -> Tensor:
    """Do the same into `output`."""
    return output.copy_(reduce_scatterv(self, whole, dim, sizes))


CpuCommunicator.all_gatherv = all_gatherv
CpuCommunicator.reduce_scatterv = reduce_scatterv
CpuCommunicator.reduce_scatterv_into_output = reduce_scatterv_into_output
