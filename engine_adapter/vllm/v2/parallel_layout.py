"""The layout of P-EAGLE's rows on model runner V2: one pass drafts all positions.

A request with q positions in the step, of which the last `rejected` were rejected, gets q + width - 1 rows:

    row             token                  hidden state            result
    0 .. v - 1      the position's next    the target's            the KV cache of accepted positions
    v               the token sampled now  the target's            draft token 1
    v + 1 ..        the mask token         the mask's, learned     draft tokens 2 .. width
    the rest        0                      any                     nothing: no KV slot, not sampled

with v = q - 1 - rejected. The rows without a result are the last ones, so the causal mask of the others is right.
vLLM's model runner V1 has the same layout (`copy_and_expand_eagle_inputs_kernel`); the tests compare the two.

Hidden states are not copied: `sources` names the state that each row reads, a position of the step or `mask_source`.
"""

from dataclasses import dataclass
from typing import Any

import torch
from vllm.triton_utils import tl, triton

_BLOCK = 256
"""Rows that one program of the kernel writes, as in vLLM's kernel of the same purpose."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The buffers of a layout, each for the largest step.

    `sources` and `is_unused` are [rows]. `samples`, `sample_positions` and `sample_slots` are [requests, K_max]: the
    row from which a draft token is sampled, the position before the token, and the request's slot in the runner's
    state. Beyond the width, and for padding, they are row 0 and slot -1, which vLLM's sampling skips.
    """

    sources: torch.Tensor
    is_unused: torch.Tensor
    samples: torch.Tensor
    sample_positions: torch.Tensor
    sample_slots: torch.Tensor

    @classmethod
    def of_size(cls, rows: int, requests: int, k_max: int, device: torch.device) -> "Layout":
        """Return buffers for so many rows and requests."""
        return cls(
            torch.zeros(rows, dtype=torch.int64, device=device),
            torch.zeros(rows, dtype=torch.bool, device=device),
            torch.zeros(requests, k_max, dtype=torch.int64, device=device),
            torch.zeros(requests, k_max, dtype=torch.int64, device=device),
            torch.full((requests, k_max), -1, dtype=torch.int64, device=device),
        )


def lay_out(  # noqa: PLR0913, PLR0917 - the parts of a layout
    layout: Layout,
    buffers: Any,
    batch: Any,
    following: torch.Tensor,
    rejected: torch.Tensor,
    width: int,
    mask_token: int,
    mask_source: int,
    max_length: int,
) -> None:
    """Write the rows of a step that drafts `width` tokens for each request to `layout`, and to the drafter's `buffers`.

    `batch` is the step's `InputBatch`; `following` [requests] are the tokens sampled now, or the next tokens of
    unfinished prompts; `rejected` [requests] are the numbers of rejected draft tokens. No position reaches
    `max_length`.
    """
    count = batch.num_reqs
    longest = int(batch.num_scheduled_tokens.max()) + width - 1
    requests, k_max = layout.samples.shape
    _lay_out_kernel[(requests, triton.cdiv(longest, _BLOCK))](
        buffers.input_ids,
        buffers.positions,
        buffers.query_start_loc,
        buffers.seq_lens,
        layout.sources,
        layout.is_unused,
        layout.samples,
        layout.sample_positions,
        layout.sample_slots,
        batch.input_ids,
        batch.positions,
        batch.query_start_loc,
        batch.seq_lens,
        batch.idx_mapping,
        following,
        rejected,
        count,
        width,
        mask_token,
        mask_source,
        max_length,
        K_MAX=k_max,
        K_BLOCK=triton.next_power_of_2(k_max),
        BLOCK=_BLOCK,
    )


@triton.jit(do_not_specialize=["count", "width"])
def _lay_out_kernel(  # type: ignore[no-untyped-def] # noqa: PLR0913, PLR0917 - one program for each request and block
    input_ids,
    out_positions,
    out_starts,
    out_lengths,
    sources,
    is_unused,
    samples,
    sample_positions,
    sample_slots,
    target_ids,
    target_positions,
    starts,
    lengths,
    slots,
    following,
    rejected,
    count,
    width,
    mask_token,
    mask_source,
    max_length,
    K_MAX: tl.constexpr,  # noqa: N803 - Triton's style for constants
    K_BLOCK: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    request = tl.program_id(0)
    block = tl.program_id(1)
    at_sample = request * K_MAX + tl.arange(0, K_BLOCK)
    is_sample = tl.arange(0, K_BLOCK) < K_MAX
    if request >= count:  # padding, for CUDA graphs
        if block == 0:
            tl.store(out_starts + request + 1, tl.load(starts + count) + count * (width - 1))
            tl.store(out_lengths + request, 0)
            tl.store(samples + at_sample, 0, mask=is_sample)
            tl.store(sample_positions + at_sample, 0, mask=is_sample)
            tl.store(sample_slots + at_sample, -1, mask=is_sample)
        return
    start = tl.load(starts + request)
    end = tl.load(starts + request + 1)
    valid = end - start - 1 - tl.load(rejected + request)
    begin = start + request * (width - 1)
    first = tl.load(target_positions + start)

    row = block * BLOCK + tl.arange(0, BLOCK)
    is_row = row < end - start + width - 1
    is_kept = row < valid
    is_mask = (row > valid) & (row < valid + width)
    unused = row >= valid + width
    token = tl.load(target_ids + start + 1 + row, mask=is_row & is_kept, other=0)
    token = tl.where(row == valid, tl.load(following + request), token)
    token = tl.where(is_mask, mask_token, token)
    position = tl.where(unused, 0, first + row)
    tl.store(input_ids + begin + row, token.to(tl.int32), mask=is_row)
    tl.store(out_positions + begin + row, tl.minimum(position, max_length - 1), mask=is_row)
    source = tl.where(is_mask, mask_source, start + row)
    tl.store(sources + begin + row, tl.where(unused, start, source), mask=is_row)
    tl.store(is_unused + begin + row, unused | (position >= max_length), mask=is_row)

    if block == 0:
        if request == 0:
            tl.store(out_starts, 0)
        tl.store(out_starts + request + 1, end + (request + 1) * (width - 1))
        tl.store(out_lengths + request, tl.minimum(tl.load(lengths + request) + width - 1, max_length))
        k = tl.arange(0, K_BLOCK)
        is_drafted = k < width
        tl.store(samples + at_sample, tl.where(is_drafted, begin + valid + k, 0), mask=is_sample)
        tl.store(sample_positions + at_sample, tl.where(is_drafted, first + valid + k + 1, 0), mask=is_sample)
        slot = tl.load(slots + request)
        tl.store(sample_slots + at_sample, tl.where(is_drafted, slot, -1), mask=is_sample)
