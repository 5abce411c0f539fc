"""A part of a batch on model runner V1: the drafter runs only over the requests with K > 0.

vLLM passes its drafter the whole batch of a step. `chosen` reduces the arguments of `SpecDecodeBaseProposer.propose` to
the requests at some places of the batch, and `spread` puts their drafts back to these places. So the code after the
drafter has drafts of the whole batch; the other requests have zeros, which are cut off (K = 0). With 8 JSON requests at
K = 7 and 8 code requests at K = 0 this gives 1.13 times the tokens of drafting for all (demo pair, P-EAGLE). A number
of slots of its own for each request would need a layout of our own, for at most some 6 % of a step.

The host knows the rows of these requests (`query_start_loc_cpu`), so nothing waits for the accelerator. All indices are
computed on the host, by numpy, and copied in one piece: each avoided torch operation saves 5 to 10 microseconds of the
host's time in a step. Only the accelerator knows how many drafts of a request were rejected; these are selected there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from vllm.v1.attention.backend import CommonAttentionMetadata

from specpilot.engine_adapter.vllm.embeddings import of_positions
from specpilot.engine_adapter.vllm.rows import handed_over


def chosen(
    arguments: Mapping[str, Any], places: Sequence[int], device: torch.device
) -> tuple[dict[str, Any], torch.Tensor]:
    """Return the `arguments` of `propose`, by name, for the requests at `places` of the batch alone.

    The `places` are returned too, on the `device`: [requests].
    """
    metadata: CommonAttentionMetadata = arguments["common_attn_metadata"]
    count = len(places)
    all_starts, places_np = metadata.query_start_loc_cpu.numpy(), np.array(places, dtype=np.int32)
    begins = all_starts[places_np]
    lengths = all_starts[places_np + 1] - begins
    starts = np.zeros(count + 1, dtype=np.int32)
    np.cumsum(lengths, out=starts[1:])
    moved = begins - starts[:-1]
    rows = np.arange(starts[-1], dtype=np.int32) + np.repeat(moved, lengths)
    parts = (places_np, rows, starts, moved)
    on_host = torch.from_numpy(np.concatenate(parts))
    requests, tokens, starts_there, moved_there = handed_over(on_host, device).split([len(part) for part in parts])
    bound = metadata.seq_lens_cpu_upper_bound.numpy()[places_np]

    reduced = dict(arguments)
    for name in ("target_token_ids", "target_hidden_states"):
        reduced[name] = reduced[name].index_select(0, tokens)
    reduced["target_positions"] = reduced["target_positions"].index_select(-1, tokens)
    for name in ("next_token_ids", "num_rejected_tokens_gpu"):
        if reduced.get(name) is not None:
            reduced[name] = reduced[name].index_select(0, requests)
    if reduced.get("token_indices_to_sample") is not None:
        reduced["token_indices_to_sample"] = reduced["token_indices_to_sample"].index_select(0, requests) - moved_there
    sampling = reduced["sampling_metadata"]
    if sampling.temperature is not None:  # drafters read no other part of it
        reduced["sampling_metadata"] = replace(sampling, temperature=sampling.temperature.index_select(0, requests))
    if reduced.get("mm_embed_inputs") is not None:
        embeddings, is_embedding_cpu = reduced["mm_embed_inputs"]
        there_cpu = torch.from_numpy(rows).long()
        reduced["mm_embed_inputs"] = of_positions(there_cpu, embeddings, is_embedding_cpu, device)
    if reduced.get("slot_mappings") is not None:  # of the whole batch; EAGLE drafters make their own from the metadata
        reduced["slot_mappings"] = None
    reduced["common_attn_metadata"] = CommonAttentionMetadata(
        query_start_loc=starts_there,
        query_start_loc_cpu=torch.from_numpy(starts),
        seq_lens=metadata.seq_lens.index_select(0, requests),
        seq_lens_cpu_upper_bound=torch.from_numpy(bound),
        num_reqs=count,
        num_actual_tokens=int(starts[-1]),
        max_query_len=int(lengths.max()),
        max_seq_len=int(bound.max()),
        block_table_tensor=metadata.block_table_tensor.index_select(0, requests),
        slot_mapping=metadata.slot_mapping.index_select(0, tokens),
        causal=True,
    )
    return reduced, requests


def spread(values: torch.Tensor, places: torch.Tensor, count: int) -> torch.Tensor:
    """Return `values` [places, ...] at their `places` of a batch of `count` requests, zeros elsewhere: [count, ...]."""
    return values.new_zeros(count, *values.shape[1:]).index_copy_(0, places.long(), values)
