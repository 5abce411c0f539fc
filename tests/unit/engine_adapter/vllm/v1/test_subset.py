"""A batch cut down to the requests that the drafter runs over, and their drafts put back to their places."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from vllm.v1.attention.backend import CommonAttentionMetadata

from specpilot.engine_adapter.vllm.scheduler_output import places_of
from specpilot.engine_adapter.vllm.v1 import subset
from specpilot.engine_adapter.vllm.v1.subset import spread


@dataclass
class Sampling:
    temperature: torch.Tensor | None


LENGTHS, SEQUENCES = [1, 4, 1, 3], [40, 60, 20, 33]
"""Positions in the step, and lengths of the sequences, of four requests."""


def arguments() -> dict[str, Any]:
    """What vLLM hands to `propose`, in its order: each number tells whose it is and where it stood."""
    starts = torch.tensor([0, 1, 5, 6, 9], dtype=torch.int32)
    tokens = torch.tensor([10 * request + at for request, length in enumerate(LENGTHS) for at in range(length)])
    lengths = torch.tensor(SEQUENCES, dtype=torch.int32)
    metadata = CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=lengths,
        seq_lens_cpu_upper_bound=lengths + 2,
        num_reqs=4,
        num_actual_tokens=9,
        max_query_len=4,
        max_seq_len=62,
        block_table_tensor=torch.arange(8, dtype=torch.int32).view(4, 2),
        slot_mapping=(tokens + 100),
        causal=True,
    )
    return {
        "target_token_ids": tokens,
        "target_positions": (tokens + 200),
        "target_hidden_states": tokens.float().unsqueeze(1).expand(9, 3),
        "next_token_ids": torch.tensor([5, 6, 7, 8], dtype=torch.int32),
        "token_indices_to_sample": torch.tensor([0, 2, 5, 8], dtype=torch.int32),
        "common_attn_metadata": metadata,
        "sampling_metadata": Sampling(torch.tensor([0.0, 0.1, 0.2, 0.3])),
        "mm_embed_inputs": None,
        "num_rejected_tokens_gpu": torch.tensor([0, 2, 0, 0], dtype=torch.int32),
        "slot_mappings": {"layer": tokens + 100},
    }


def chosen(places: list[int], **other: Any) -> dict[str, Any]:
    found, there = subset.chosen(arguments() | other, places, torch.device("cpu"))
    assert there.tolist() == places
    return found


def test_what_is_left_is_the_batch_of_these_requests_alone() -> None:
    given = arguments()
    found = chosen([1, 3], **given)
    assert found["target_token_ids"].tolist() == [10, 11, 12, 13, 30, 31, 32]
    assert found["target_positions"].tolist() == [210, 211, 212, 213, 230, 231, 232]
    assert found["target_hidden_states"][:, 0].tolist() == [10, 11, 12, 13, 30, 31, 32]
    assert found["next_token_ids"].tolist() == [6, 8]
    assert found["token_indices_to_sample"].tolist() == [1, 6]  # the second token of one, the last of the other
    assert found["num_rejected_tokens_gpu"].tolist() == [2, 0]
    assert found["sampling_metadata"].temperature.tolist() == pytest.approx([0.1, 0.3])
    metadata = found["common_attn_metadata"]
    assert metadata.query_start_loc.tolist() == metadata.query_start_loc_cpu.tolist() == [0, 4, 7]
    assert (metadata.seq_lens.tolist(), metadata.seq_lens_cpu_upper_bound.tolist()) == ([60, 33], [62, 35])
    assert (metadata.num_reqs, metadata.num_actual_tokens, metadata.batch_size()) == (2, 7, 2)
    assert (metadata.max_query_len, metadata.max_seq_len) == (4, 62)
    assert metadata.block_table_tensor.tolist() == [[2, 3], [6, 7]]
    assert metadata.slot_mapping.tolist() == [110, 111, 112, 113, 130, 131, 132]
    assert found["slot_mappings"] is None  # not those of the whole batch
    metadata.seq_lens -= 1  # as sequential drafting does: vLLM's own stay
    metadata.seq_lens_cpu_upper_bound += 1
    assert given["common_attn_metadata"].seq_lens.tolist() == SEQUENCES
    assert given["common_attn_metadata"].seq_lens_cpu_upper_bound.tolist() == [42, 62, 22, 35]


def test_a_step_that_verifies_nothing_and_greedy_or_multimodal_batches_are_cut_too() -> None:
    positions = torch.arange(27).view(3, 9)
    mask = torch.tensor([False, True, True, False, False, False, True, False, False])
    found = chosen(
        [1],
        token_indices_to_sample=None,
        num_rejected_tokens_gpu=None,
        sampling_metadata=Sampling(None),
        target_positions=positions,
        mm_embed_inputs=([torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0]])], mask),
    )
    assert (found["token_indices_to_sample"], found["num_rejected_tokens_gpu"]) == (None, None)
    assert found["target_positions"].tolist() == positions[:, 1:5].tolist()
    embeddings, where = found["mm_embed_inputs"]
    assert where.tolist() == [True, True, False, False]
    assert torch.cat(list(embeddings)).tolist() == [[1.0], [2.0]]


def test_drafts_go_back_to_the_places_of_their_requests() -> None:
    assert places_of(["d", "b", "a", "c"], ("b", "c")) == [0, 2]
    drafts = torch.tensor([[1, 2], [3, 4]])
    assert spread(drafts, torch.tensor([0, 2]), 4).tolist() == [[1, 2], [0, 0], [3, 4], [0, 0]]
    assert spread(torch.ones(1, 2, 3), torch.tensor([1]), 2).sum(dim=(1, 2)).tolist() == [0, 6]
