"""The adapter's layout of P-EAGLE's rows on model runner V2 beside vLLM's on V1: both Triton kernels, interpreted.

Run as a program, it gives both the same random batches at every width and
prints in how many of them the layouts were compared and where they differ.
"""

import json
import random
import sys
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch

from tests.support import triton_kernels
from tests.support.triton_kernels import BATCHES, MASK_TOKEN, WIDTHS, laid_out

own: Any = import_module("specpilot.engine_adapter.vllm.v2.parallel_layout")  # after the interpreter is chosen
K_MAX, REQUESTS, LONGEST, MASK_SOURCE = max(WIDTHS), max(BATCHES) + 2, 1 << 20, 999


def ours(case: Any, slots: list[int]) -> tuple[Any, Any]:
    """Lay the batch of a case of vLLM's kernel out."""
    _, arguments, _, _ = case
    tokens, positions, following, starts, ends, width = (arguments[at] for at in (0, 1, 2, 9, 10, 14))
    count, total = len(following), len(tokens)
    rows = total + count * (width - 1)
    layout = own.Layout.of_size(rows + 1, REQUESTS, K_MAX, torch.device("cpu"))
    buffers = SimpleNamespace(
        input_ids=torch.full((rows + 1,), -7, dtype=torch.int32),
        positions=torch.full((rows + 1,), -7, dtype=torch.int64),
        query_start_loc=torch.full((REQUESTS + 1,), -7, dtype=torch.int32),
        seq_lens=torch.full((REQUESTS,), -7, dtype=torch.int32),
    )
    lengths = starts.diff()
    batch = SimpleNamespace(
        num_reqs=count,
        num_scheduled_tokens=lengths.numpy(),
        input_ids=tokens,
        positions=positions,
        query_start_loc=starts,
        seq_lens=(positions[starts[:-1].long()] + lengths).int(),
        idx_mapping=torch.tensor(slots[:count]),
    )
    rejected = starts[1:] - 1 - ends
    own.lay_out(layout, buffers, batch, following, rejected, width, MASK_TOKEN, MASK_SOURCE, LONGEST)
    return layout, buffers


def differences(case: Any, slots: list[int]) -> list[str]:
    """Return where the two layouts of a case's batch differ."""
    grid, arguments, constants, _ = case
    triton_kernels.utils.copy_and_expand_eagle_inputs_kernel[grid](*arguments, **constants)
    ids, positions, is_rejected, is_masked, samples, places = arguments[3:9]
    starts, width, count, rows = arguments[9], arguments[14], len(arguments[2]), len(arguments[3])
    layout, buffers = ours(case, slots)
    is_read = ~(is_masked | is_rejected)
    sources = torch.full((rows,), MASK_SOURCE)
    sources[places.long()] = torch.arange(len(places))
    own_starts = starts + torch.arange(count + 1) * (width - 1)
    ends = (arguments[1][starts[:-1].long()] + starts.diff() + width - 1).int()
    of_samples = positions[samples.long()].view(count, width) + 1
    wanted: dict[str, tuple[Any, Any]] = {
        "tokens": (buffers.input_ids[:rows], ids),
        "positions": (buffers.positions[:rows], positions),
        "unused": (layout.is_unused[:rows], is_rejected),
        "masks": ((layout.sources[:rows] == MASK_SOURCE), is_masked),
        "sources": (layout.sources[:rows][is_read], sources[is_read]),
        "samples": (layout.samples[:count, :width].flatten(), samples.long()),
        "positions sampled from": (layout.sample_positions[:count, :width], of_samples),
        "slots": (layout.sample_slots[:count, :width], torch.tensor(slots[:count])[:, None].expand(count, width)),
        "no more samples": (layout.sample_slots[:count, width:], torch.full((count, K_MAX - width), -1)),
        "starts": (buffers.query_start_loc[: count + 1], own_starts.int()),
        "lengths": (buffers.seq_lens[:count], ends),
        "padding": (layout.sample_slots[count:], torch.full((REQUESTS - count, K_MAX), -1)),
        "padded starts": (buffers.query_start_loc[count + 1 :], own_starts[-1:].int().expand(REQUESTS - count)),
        "padded lengths": (buffers.seq_lens[count:], torch.zeros(REQUESTS - count, dtype=torch.int32)),
        "nothing beyond": (buffers.input_ids[rows:], torch.tensor([-7], dtype=torch.int32)),
    }
    return [
        f"width {width}, {count} requests, {name}: {found.tolist()} and {theirs.tolist()}"
        for name, (found, theirs) in wanted.items()
        if not torch.equal(found, theirs)
    ]


def main() -> None:
    """Compare, and report."""
    rng, count, differ = random.Random(3), 0, list[str]()
    for width in WIDTHS:
        for requests in BATCHES:
            for case in laid_out(rng, width, requests):
                if case[1][15]:  # EAGLE's, which shifts the tokens
                    count += 1
                    differ += differences(case, rng.sample(range(50), REQUESTS))
    sys.stdout.write(json.dumps({"compared": count, "differ": differ}) + "\n")


if __name__ == "__main__":
    triton_kernels.current_platform.import_kernels()
    main()
