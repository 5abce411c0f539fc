"""A part of a batch: the drafter runs over those requests alone for whom somebody wants a draft.

vLLM hands its drafter the whole batch of a step. `chosen` cuts the arguments of `SpecDecodeBaseProposer.propose` down
to the requests at some places of it, and `spread` puts what was drafted for them back to these places, so that all
after the drafter sees a batch as ever: whose drafts nobody wants have zeros, which are cut off (K = 0).

Which rows these are is known on the host (`query_start_loc_cpu`), so nothing waits for the accelerator: indices are
made on the host and handed over. How many of a request's drafts were rejected is only known on the accelerator; it is
a number for each request, and is picked out there.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from vllm.v1.attention.backend import CommonAttentionMetadata

from specpilot.engine_adapter.vllm.rows import handed_over, indices


def places_of(batch: Sequence[str], left_out: Collection[str]) -> list[int]:
    """Return where in the `batch` those stand who are not `left_out`."""
    out = frozenset(left_out)
    return [place for place, request in enumerate(batch) if request not in out]


def chosen(arguments: Mapping[str, Any], places: Sequence[int], device: torch.device) -> dict[str, Any]:
    """Return the `arguments` of `propose`, by name, for the requests at `places` of the batch alone."""
    metadata: CommonAttentionMetadata = arguments["common_attn_metadata"]
    places_cpu = torch.tensor(places)
    begins_cpu = metadata.query_start_loc_cpu[places_cpu]
    lengths_cpu = metadata.query_start_loc_cpu[places_cpu + 1] - begins_cpu
    starts_cpu = torch.zeros(len(places) + 1, dtype=torch.int32)
    torch.cumsum(lengths_cpu, 0, out=starts_cpu[1:])
    count = int(starts_cpu[-1])
    tokens_cpu = torch.arange(count) + (begins_cpu - starts_cpu[:-1]).long().repeat_interleave(
        lengths_cpu, output_size=count
    )
    requests, tokens = handed_over(torch.cat([places_cpu, tokens_cpu]), device).split([len(places), count])
    starts = handed_over(starts_cpu, device)
    bound_cpu = metadata.seq_lens_cpu_upper_bound[places_cpu]

    given = dict(arguments)
    for name in ("target_token_ids", "target_hidden_states"):
        given[name] = given[name][tokens]
    given["target_positions"] = given["target_positions"][..., tokens]
    for name in ("next_token_ids", "num_rejected_tokens_gpu"):
        if given.get(name) is not None:
            given[name] = given[name][requests]
    if given.get("token_indices_to_sample") is not None:
        moved = metadata.query_start_loc[requests] - starts[:-1]
        given["token_indices_to_sample"] = given["token_indices_to_sample"][requests] - moved
    sampling = given["sampling_metadata"]
    if sampling.temperature is not None:  # all that drafters read of it
        given["sampling_metadata"] = replace(sampling, temperature=sampling.temperature[requests])
    if given.get("mm_embed_inputs") is not None:
        embeddings, is_embedding_cpu = given["mm_embed_inputs"]
        given["mm_embed_inputs"] = _embeddings_of(tokens_cpu, embeddings, is_embedding_cpu, device)
    if given.get("slot_mappings") is not None:  # of the whole batch; EAGLE drafters make theirs of the metadata's
        given["slot_mappings"] = None
    given["common_attn_metadata"] = CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts_cpu,
        seq_lens=metadata.seq_lens[requests],
        seq_lens_cpu_upper_bound=bound_cpu,
        num_reqs=len(places),
        num_actual_tokens=count,
        max_query_len=int(lengths_cpu.max()),
        max_seq_len=int(bound_cpu.max()),
        block_table_tensor=metadata.block_table_tensor[requests],
        slot_mapping=metadata.slot_mapping[tokens],
        causal=True,
    )
    return given


def _embeddings_of(
    tokens_cpu: torch.Tensor, embeddings: Sequence[torch.Tensor], is_embedding_cpu: torch.Tensor, device: torch.device
) -> tuple[Sequence[torch.Tensor], torch.Tensor]:
    """Return the image embeddings that lie at these positions of the step, and at which of them one lies.

    The last position of a prompt may be an image's, of a request that is left out.
    """
    chosen_cpu = is_embedding_cpu[tokens_cpu]
    if int(chosen_cpu.sum()) < int(is_embedding_cpu.sum()):
        rows_cpu = (is_embedding_cpu.cumsum(0) - 1)[tokens_cpu][chosen_cpu]
        embeddings = [torch.cat(list(embeddings))[handed_over(rows_cpu, device)]]
    return embeddings, chosen_cpu


def spread(values: torch.Tensor, places: Sequence[int], count: int) -> torch.Tensor:
    """Return `values` [places, ...] at their `places` of a batch of `count` requests, zeros elsewhere: [count, ...]."""
    whole = values.new_zeros(count, *values.shape[1:])
    whole[indices(list(places), values.device)] = values
    return whole
