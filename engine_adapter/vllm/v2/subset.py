"""A part of a step on model runner V2: the speculator runs only over the requests with K > 0.

`chosen` reduces the arguments of `propose` to the requests at some places of the batch, and `spread` puts their drafts
back to these places; the others get -1, vLLM's sign for no draft.

The head's first pass reads the step from the runner's persistent buffers, whose addresses a FULL CUDA graph contains.
So the part is written into them like a step of the runner, padded to its graph: query starts, sequence lengths, block
tables, slot mappings. Nothing after the speculator reads the buffers of the whole step, and the next step writes them
again. A speculator that `lays_out_itself` gets the block tables only. vLLM 0.33 masks blocks below a sliding window in
the tables that it gathers; here they stay, because no head with a sliding window leaves requests out.

The host knows the tokens of the part, so nothing waits for the accelerator.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from vllm.v1.worker.gpu.attn_utils import build_slot_mappings_by_layer
from vllm.v1.worker.utils import get_uniform_decode_token_count

from specpilot.engine_adapter.vllm.embeddings import of_positions
from specpilot.engine_adapter.vllm.rows import handed_over, indices
from specpilot.engine_adapter.vllm.v2.graphs import note_longest


def chosen(speculator: Any, arguments: dict[str, Any], places: Sequence[int], cut: int = 0) -> dict[str, Any]:
    """Return the arguments of `propose`, by name, for the requests at `places` of the batch alone.

    The first `cut` requests of the batch are among them; only the accelerator knows the number of positions of each.
    """
    whole, device = arguments["input_batch"], speculator.device
    at = np.array(places)
    part = _on_host(whole, at)
    lays_out_itself = getattr(speculator, "lays_out_itself", False)
    graph = None if lays_out_itself else _graph_of(speculator, part)
    count, padded_reqs, padded = part.num_tokens, part.num_reqs, part.num_tokens
    if graph is not None:
        padded_reqs, padded = graph.num_reqs or padded_reqs, max(padded, graph.num_tokens)
        part.max_query_len = graph.max_query_len
    begins = np.repeat(
        whole.query_start_loc_np[:-1][at] - part.query_start_loc_np[:-1], np.diff(part.query_start_loc_np)
    )
    tokens_cpu = torch.zeros(padded, dtype=torch.int64)  # padding repeats the first token: its result is dropped
    tokens_cpu[:count] = torch.from_numpy(np.arange(count) + begins)
    tokens, requests = handed_over(tokens_cpu, device), indices(list(places), device)
    part = _on_device(speculator, whole, part, padded_reqs, requests, tokens, cut)
    tables = speculator.block_tables
    block_tables = tables.gather_block_tables(part.idx_mapping, num_reqs_padded=part.num_reqs_after_padding)
    metadata = slots_by_layer = None
    if graph is not None:
        slots = tables.compute_slot_mappings(part.idx_mapping, part.query_start_loc, part.positions, padded)
        slots_by_layer = build_slot_mappings_by_layer(slots, speculator.kv_cache_config)
        metadata = speculator.model_state.prepare_attn(
            part, graph.cg_mode, block_tables, slots, speculator.target_attn_groups, speculator.kv_cache_config
        )
    states, images = arguments["aux_hidden_states"], arguments.get("mm_inputs")
    if images is not None:
        embeddings, is_embedding_cpu = images
        images = of_positions(tokens_cpu[:count], embeddings, is_embedding_cpu, device)
    return arguments | {
        "input_batch": part,
        "mm_inputs": images,
        "attn_metadata": metadata,
        "slot_mappings": slots_by_layer,
        "last_hidden_states": arguments["last_hidden_states"][tokens],
        "aux_hidden_states": [layer[tokens] for layer in states] if states else states,
        "num_sampled": arguments["num_sampled"][requests],
        "num_rejected": arguments["num_rejected"][requests],
    }


def spread(drafts: torch.Tensor, places: Sequence[int], count: int, elsewhere: float = -1) -> torch.Tensor:
    """Return `drafts` [places, K] at their `places` of a batch of `count` requests: [count, K], one value elsewhere."""
    whole = drafts.new_full((count, drafts.shape[1]), elsewhere)
    whole[indices(list(places), drafts.device)] = drafts
    return whole


def _on_host(whole: Any, at: np.ndarray) -> Any:
    """Return the `InputBatch` of the requests `at` these places, with the fields that are known on the host."""
    lengths = np.diff(whole.query_start_loc_np[: whole.num_reqs + 1])[at]
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    prefilling, as_decode = whole.is_prefilling_np[at], whole.prefill_runs_as_decode_np
    drafted = whole.num_draft_tokens_per_req
    return replace(
        whole,
        req_ids=[whole.req_ids[place] for place in at],
        num_reqs=len(at),
        idx_mapping_np=whole.idx_mapping_np[at],
        num_scheduled_tokens=whole.num_scheduled_tokens[at],
        num_draft_tokens_per_req=None if drafted is None else drafted[at],
        num_tokens=int(starts[-1]),
        query_start_loc_np=starts,
        seq_lens_cpu_upper_bound=whole.seq_lens_cpu_upper_bound[torch.from_numpy(at)],
        num_computed_tokens_np=whole.num_computed_tokens_np[at],
        prefill_len_np=whole.prefill_len_np[at],
        num_computed_prefill_tokens_np=whole.num_computed_prefill_tokens_np[at],
        is_prefilling_np=prefilling,
        has_prefill=bool(prefilling.any()),
        decode_graph_eligible=as_decode is None or bool((~prefilling | as_decode[at]).all()),
        prefill_runs_as_decode_np=None if as_decode is None else as_decode[at],
        max_query_len=None,
        fast_prefill=None,
    )


def _graph_of(speculator: Any, part: Any) -> Any:
    """Return the descriptor of the graph that vLLM will find for the head's first pass over `part`."""
    note_longest(speculator, part)
    longest = part.num_scheduled_tokens.max()
    uniform = get_uniform_decode_token_count(part.num_reqs, part.num_tokens, longest, part.decode_graph_eligible)
    return speculator.prefill_cudagraph_manager.dispatch(part.num_reqs, part.num_tokens, uniform, num_active_loras=0)


def _on_device(  # noqa: PLR0913, PLR0917 - the parts of a batch
    speculator: Any, whole: Any, part: Any, padded_to: int, requests: torch.Tensor, tokens: torch.Tensor, cut: int
) -> Any:
    """Return `part` written into the runner's buffers, with so many requests and `tokens`, padding included.

    The begins of its first `cut` requests are already there.
    """
    buffers, count = speculator.target_input_buffers, part.num_reqs
    seq_lens = whole.seq_lens[requests]
    starts_cpu = torch.from_numpy(part.query_start_loc_np[cut:])
    buffers.query_start_loc[cut : count + 1] = handed_over(starts_cpu, speculator.device)
    buffers.query_start_loc[count + 1 :] = part.num_tokens
    buffers.seq_lens[:count] = seq_lens
    buffers.seq_lens[count:] = 0
    padding = padded_to - count
    starts = np.concatenate([part.query_start_loc_np, np.full(padding, part.num_tokens, dtype=np.int32)])
    bound = torch.cat([part.seq_lens_cpu_upper_bound, torch.zeros(padding, dtype=torch.int32)])
    return replace(
        part,
        num_reqs_after_padding=padded_to,
        num_tokens_after_padding=len(tokens),
        idx_mapping=whole.idx_mapping[requests],
        query_start_loc=buffers.query_start_loc[: padded_to + 1],
        query_start_loc_np=starts,
        seq_lens=buffers.seq_lens[:padded_to],
        seq_lens_cpu_upper_bound=bound,
        input_ids=whole.input_ids[tokens],
        positions=whole.positions[tokens],
    )
