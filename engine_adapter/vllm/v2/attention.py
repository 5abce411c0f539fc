"""The attention metadata of a pass of the head that the adapter prepares itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from vllm.v1.worker.gpu.attn_utils import build_attn_metadata


@dataclass(frozen=True, slots=True)
class Pass:
    """Rows of some requests; the rows of one request are consecutive.

    `starts` [requests + 1] are their first rows, also on the host (`starts_cpu`). `seq_lens` [requests] are the lengths
    of the sequences up to their last row, `bound_cpu` upper bounds of these on the host. `block_tables` are by KV cache
    group, [requests, blocks]; `slots` [groups, rows] are the KV slots of the rows. Padding for a CUDA graph is
    included: requests without rows, and rows without slots. `longest` is the largest number of rows of a request, or of
    the graph.
    """

    starts: torch.Tensor
    starts_cpu: torch.Tensor
    seq_lens: torch.Tensor
    bound_cpu: torch.Tensor
    block_tables: Sequence[torch.Tensor]
    slots: torch.Tensor
    positions: torch.Tensor
    longest: int

    def metadata(self, speculator: Any) -> dict[str, Any]:
        """Return vLLM's attention metadata by layer of the `speculator`'s head."""
        count = len(self.seq_lens)
        by_layer: dict[str, Any] = build_attn_metadata(
            attn_groups=speculator.attn_groups,
            num_reqs=count,
            num_tokens=self.slots.shape[1],
            query_start_loc_gpu=self.starts,
            query_start_loc_cpu=self.starts_cpu,
            max_query_len=self.longest,
            seq_lens=self.seq_lens,
            max_seq_len=int(self.bound_cpu.max()),
            block_tables=self.block_tables,
            slot_mappings=self.slots,
            kv_cache_config=speculator.kv_cache_config,
            seq_lens_cpu_upper_bound=self.bound_cpu,
            positions=self.positions,
            is_prefilling=torch.zeros(count, dtype=torch.bool),
        )
        return by_layer
