"""Where rows of the backlog go, and which are forgotten before a step."""

from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from specpilot.engine_adapter.vllm.scheduler_output import forget_useless
from specpilot.engine_adapter.vllm.v1.backlog import Backlog
from tests.support.vllm_config import config


def two_requests(of_a: int = 2) -> Any:
    """A backlog of "a" with `of_a` rows, then of "b" with one; their states and tokens are 0, 1, 2, ..."""
    own = config("eagle")
    own.scheduler_config.max_num_seqs = 4
    own.model_config.max_model_len, own.model_config.get_hidden_size = 100, lambda: 1
    own.speculative_config.draft_model_config.get_sliding_window = lambda: 8  # only as many rows as requests run
    drafter = SimpleNamespace(vllm_config=own, device=torch.device("cpu"), dtype=torch.float32, block_size=16)
    backlog = Backlog(drafter)
    for number, request in enumerate([*["a"] * of_a, "b"]):
        backlog.rows.add([request], [torch.tensor([[float(number)]])], torch.tensor([number]), ["a", "b"])
    return backlog


def two_decodes() -> tuple[Any, Any]:
    """A runner, and its state after a step in which "b" and "a" decoded: their sequences have 41 and 61 tokens now."""
    metadata = SimpleNamespace(
        num_reqs=2,
        query_start_loc=torch.tensor([0, 1, 2]),
        query_start_loc_cpu=torch.tensor([0, 1, 2]),
        seq_lens=torch.tensor([41, 61]),
        seq_lens_cpu_upper_bound=torch.tensor([41, 61]),
        num_actual_tokens=2,
        block_table_tensor=torch.arange(4, dtype=torch.int32).repeat(2, 1),
    )
    runner = SimpleNamespace(
        input_batch=SimpleNamespace(req_ids=["b", "a"]),
        input_ids=SimpleNamespace(gpu=torch.tensor([70, 80], dtype=torch.int32)),
        _get_positions=lambda count: torch.tensor([40, 60])[:count],
    )
    return runner, SimpleNamespace(spec_decode_common_attn_metadata=metadata)


class Pass(NamedTuple):
    """One pass of the drafter."""

    tokens: list[int]
    states: list[float]
    positions: Any
    slots: list[int]
    lengths: list[int]


def passes(runner: Any, state: Any, of_a: int = 2, room: int = 8, length: int = 100) -> list[Pass]:
    """The passes of `room` tokens in which "a" and "b" catch up; the drafter reads sequences of `length`."""
    backlog, found = two_requests(of_a), list[Pass]()
    backlog._drafter.max_num_tokens, backlog._length = room, length
    backlog._forward = lambda tokens, positions, states, batch: found.append(
        Pass(
            tokens.tolist(),
            states[:, 0].tolist(),
            positions.tolist(),
            batch.slot_mapping.tolist(),
            batch.seq_lens.tolist(),
        )
    )
    backlog.catch_up(runner, state, ["a", "b"])
    assert len(backlog.rows) == 0
    return found


def test_each_row_goes_through_with_the_token_that_follows_it_also_where_a_pass_ends() -> None:
    # In the batch "b" stands before "a"; the step begins with the tokens 70 and 80, at the positions 40 and 60.
    assert passes(*two_decodes(), of_a=3, room=2) == [
        ([70, 1], [3, 0], [39, 57], [39, 57], [40, 58]),
        ([2, 80], [1, 2], [58, 59], [58, 59], [60]),
    ]


def test_a_row_goes_to_the_position_before_what_follows_it_and_to_that_slot() -> None:
    runner, state = two_decodes()
    state.spec_decode_common_attn_metadata.block_table_tensor[:] = torch.tensor([[7, 5, 2, 9], [1, 6, 8, 3]])
    [found] = passes(runner, state, of_a=3, length=59)  # "a" is drafted for up to position 58
    # Blocks have 16 tokens. The rows of "a" are at 57, 58 and 59, of which the last is too far.
    assert (found.states, found.positions) == ([3, 0, 1], [39, 57, 58])
    assert found.slots == [2 * 16 + 7, 3 * 16 + 9, 3 * 16 + 10]


def test_where_drafts_were_rejected_the_accelerator_knows_the_position() -> None:
    runner, state = two_decodes()
    state.spec_decode_common_attn_metadata.seq_lens_cpu_upper_bound += 5
    [found] = passes(runner, state)
    assert found[2:] == ([39, 58, 59], [39, 58, 59], [40, 60])


def test_positions_in_three_dimensions_are_those_before_the_step_in_each() -> None:
    runner, state = two_decodes()
    runner._get_positions = lambda count: torch.tensor([[20, 30], [20, 30], [20, 31]])[:, :count]
    [found] = passes(runner, state)
    assert (found.positions, found.slots) == ([[19, 28, 29], [19, 28, 29], [19, 29, 30]], [39, 58, 59])


@pytest.mark.parametrize("is_three_dimensional", [False, True])
def test_a_dflash_heads_rows_are_stored_from_their_states_without_a_pass(*, is_three_dimensional: bool) -> None:
    (runner, state), stored = two_decodes(), list[Any]()
    if is_three_dimensional:
        runner._get_positions = lambda count: torch.tensor([[40, 60]] * 3)[:, :count]
    backlog = two_requests()
    backlog._drafter.max_num_tokens, backlog._drafter.method = 8, "dflash"
    backlog._drafter.model = SimpleNamespace(
        combine_hidden_states=lambda states: states + 10,
        precompute_and_store_context_kv=lambda *given: stored.append([item.flatten().tolist() for item in given]),
    )
    backlog.catch_up(runner, state, ["a", "b"])
    assert stored == [[[12, 10, 11], [39, 58, 59], [39, 58, 59]]]


def test_a_plain_step_leaves_a_row_for_each_request() -> None:
    backlog, (runner, state) = two_requests(of_a=1), two_decodes()
    state.aux_hidden_states, state.hidden_states = None, torch.tensor([[0.5], [0.25], [0.0]])
    backlog.keep_plain(runner, state)
    assert backlog.rows.by_request() == {"a": [0, 3], "b": [1, 2]}
    assert backlog.rows.tokens().tolist() == [0, 1, 70, 80]
    assert backlog.rows.states(torch.arange(4))[:, 0].tolist() == [0.0, 1.0, 0.5, 0.25]


@pytest.mark.parametrize(
    ("of_the_step", "left"),
    [
        ({}, {"a": [0, 1], "b": [2]}),
        ({"finished": {"a"}}, {"b": [2]}),
        ({"resumed": {"b"}}, {"a": [0, 1]}),
        ({"new": ["b", "other"]}, {"a": [0, 1]}),
        ({"finished": {"a"}, "new": ["a"], "resumed": {"b"}}, {}),
    ],
)
def test_before_a_step_what_ended_or_begins_anew_is_forgotten(of_the_step: Any, left: Any) -> None:
    backlog = two_requests()
    output = SimpleNamespace(
        finished_req_ids=of_the_step.get("finished", set()),
        scheduled_new_reqs=[SimpleNamespace(req_id=name) for name in of_the_step.get("new", ())],
        scheduled_cached_reqs=SimpleNamespace(resumed_req_ids=of_the_step.get("resumed", set())),
    )
    forget_useless(backlog.rows, output)
    assert backlog.rows.by_request() == left
