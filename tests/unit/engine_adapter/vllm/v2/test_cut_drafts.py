"""Steps whose drafts adaptive verification cut: the host knows the sum of positions, the accelerator each request's.

Each is held beside the same step as the adapter sees it where the host knows it exactly. Also steps with images.
"""

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from specpilot.engine_adapter.vllm import versions
from specpilot.engine_adapter.vllm.v2 import backlog as backlog_module
from specpilot.engine_adapter.vllm.v2 import subset
from specpilot.engine_adapter.vllm.v2.backlog import Backlog
from specpilot.engine_adapter.vllm.v2.step import Step

pytestmark = pytest.mark.skipif(
    not versions.is_among(versions.vllm_version(), versions.ACCEPTED_ON_V2), reason="this vLLM's V2 is not steered"
)

VERIFIED = [3, 0, 1]  # of the first three requests, of which 3 drafted tokens each were scheduled
PROMPT, SCHEDULED = 4, 3
BEGINS = [10, 20, 30, 40, 0]  # the fourth is at K = 0, the last one's prompt is prefilled


def lengths() -> list[int]:
    return [*(1 + count for count in VERIFIED), 1, PROMPT]


@dataclass
class Batch:
    """As much of vLLM's `InputBatch` as is read; `replace` makes parts of it."""

    req_ids: list[str]
    num_reqs: int
    num_tokens: int
    num_scheduled_tokens: Any
    num_draft_tokens_per_req: Any
    query_start_loc_np: Any
    query_start_loc: Any
    seq_lens: Any
    seq_lens_cpu_upper_bound: Any
    input_ids: Any
    positions: Any
    idx_mapping: Any
    idx_mapping_np: Any
    num_computed_tokens_np: Any
    prefill_len_np: Any
    num_computed_prefill_tokens_np: Any
    is_prefilling_np: Any
    has_prefill: bool = True
    decode_graph_eligible: bool = False
    prefill_runs_as_decode_np: Any = None
    max_query_len: Any = None
    fast_prefill: Any = None
    num_reqs_after_padding: int = 5
    num_tokens_after_padding: int = 0


def batch(*, is_exact: bool) -> Batch:
    """The step, with what the host knows of it `is_exact` or as vLLM leaves it: drafts spread evenly."""
    true, count = lengths(), 5
    tokens = sum(true)
    total = sum(VERIFIED)
    even = [1 + total // 3 + (place < total % 3) for place in range(3)]
    on_host = true if is_exact else [*even, 1, PROMPT]
    scheduled = true if is_exact else [1 + SCHEDULED] * 3 + [1, PROMPT]
    starts = torch.tensor([0, *np.cumsum(true)], dtype=torch.int32)
    positions = torch.cat([torch.arange(begin, begin + length) for begin, length in zip(BEGINS, true, strict=True)])
    return Batch(
        req_ids=["a", "b", "c", "plain", "prompt"],
        num_reqs=count,
        num_tokens=tokens,
        num_scheduled_tokens=np.array(scheduled, dtype=np.int32),
        num_draft_tokens_per_req=np.array([*(VERIFIED if is_exact else [SCHEDULED] * 3), 0, 0]),
        query_start_loc_np=np.array([0, *np.cumsum(on_host)], dtype=np.int32),
        query_start_loc=starts,
        seq_lens=torch.tensor(BEGINS) + torch.tensor(true),
        seq_lens_cpu_upper_bound=torch.tensor(BEGINS) + torch.tensor(scheduled),
        input_ids=torch.arange(100, 100 + tokens),
        positions=positions,
        idx_mapping=torch.arange(count),
        idx_mapping_np=np.arange(count),
        num_computed_tokens_np=np.array(BEGINS),
        prefill_len_np=np.array([1, 1, 1, 1, 9]),
        num_computed_prefill_tokens_np=np.array([1, 1, 1, 1, 0]),
        is_prefilling_np=np.array([False] * 4 + [True]),
    )


def step(whole: Batch) -> Step:
    states = [torch.arange(whole.num_tokens, dtype=torch.float32)[:, None]]
    return Step(whole, states, torch.zeros(5, dtype=torch.int32), torch.arange(5))


def test_the_host_knows_which_requests_it_does_not_know() -> None:
    assert (step(batch(is_exact=True)).cut, step(batch(is_exact=False)).cut) == (0, 3)
    assert step(batch(is_exact=False)).multiple == [(4, range(8, 11))]
    assert [place for place, _ in step(batch(is_exact=True)).multiple] == [0, 2, 4]


@dataclass
class Speculator:
    """A head that notes the rows it runs over: token, position, state, slot of the request."""

    seen: list[tuple[int, int, float]] = field(default_factory=list)
    images: Any = None
    device = torch.device("cpu")
    dtype = torch.float32
    method = "eagle"
    max_num_tokens = 64

    def __post_init__(self) -> None:
        self.input_buffers = SimpleNamespace(input_ids=torch.zeros(64), positions=torch.zeros(64))
        self.hidden_states = torch.zeros(64, 1)
        self.kv_cache_config = None
        self.block_tables = SimpleNamespace(
            slot_mappings=torch.zeros(1, 64),
            block_tables=[],
            compute_slot_mappings=lambda requests, starts, positions, count, out: out[:, :count],
        )

    def _run_model(self, count: int, *_: Any, mm_inputs: Any = None) -> None:
        self.images = mm_inputs
        columns = (self.input_buffers.input_ids, self.input_buffers.positions, self.hidden_states[:, 0])
        rows = zip(*(column[:count].tolist() for column in columns), strict=True)
        self.seen += [(int(token), int(position), state) for token, position, state in rows]


@pytest.fixture
def _without_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog_module, "build_slot_mappings_by_layer", lambda *_: None)
    monkeypatch.setattr(backlog_module.Pass, "metadata", lambda *_: None)


@pytest.mark.usefixtures("_without_attention")
def test_the_head_takes_in_the_same_positions_of_a_step_that_drafts_nothing() -> None:
    found = []
    for is_exact in (True, False):
        own = Backlog.__new__(Backlog)
        own._speculator, own._length, own._slots = Speculator(), 1000, None
        own._take_in(step(batch(is_exact=is_exact)), ())
        found.append(own._speculator.seen)
    assert found[0] == [
        *((101 + row, 10 + row, float(row)) for row in range(3)),
        (106, 30, 5.0),
        *((109 + row, row, 8.0 + row) for row in range(3)),
    ]
    assert found[1] == found[0]


@pytest.mark.usefixtures("_without_attention")
def test_the_head_runs_over_no_position_beyond_its_length() -> None:
    own = Backlog.__new__(Backlog)
    own._speculator, own._length, own._slots = Speculator(), 30, None
    own._take_in(step(batch(is_exact=False)), ())
    assert max(position for _, position, _ in own._speculator.seen) < 30


def part_of(whole: Batch, places: list[int], **more: Any) -> dict[str, Any]:
    """The arguments of `propose` for the requests at these places of a step."""
    buffers = SimpleNamespace(query_start_loc=whole.query_start_loc, seq_lens=torch.zeros(5, dtype=torch.int64))
    speculator = SimpleNamespace(
        device=torch.device("cpu"),
        lays_out_itself=True,
        target_input_buffers=buffers,
        block_tables=SimpleNamespace(gather_block_tables=lambda *_, **__: None),
    )
    given = {
        "input_batch": whole,
        "last_hidden_states": torch.arange(whole.num_tokens)[:, None],
        "aux_hidden_states": None,
        "num_sampled": torch.arange(5),
        "num_rejected": torch.arange(5),
    }
    return subset.chosen(speculator, given | more, places, step(whole).cut)


def test_a_part_of_such_a_step_is_laid_out_as_the_accelerator_has_it() -> None:
    parts = []
    for is_exact in (True, False):
        part = part_of(batch(is_exact=is_exact), [0, 1, 2, 4])
        batch_of = part["input_batch"]
        parts.append(
            (
                batch_of.query_start_loc.tolist(), batch_of.seq_lens.tolist(), batch_of.input_ids.tolist(),
                batch_of.positions.tolist(), part["last_hidden_states"].flatten().tolist(), batch_of.num_tokens,
            )
        )  # fmt: skip
    assert parts[0][0] == [0, 4, 5, 7, 11]
    assert parts[1] == parts[0]


def image_at(*positions: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The embeddings 0, 1, ... of an image whose tokens follow these positions of the step."""
    where = torch.zeros(sum(lengths()), dtype=torch.bool)
    where[list(positions)] = True
    return [torch.arange(len(positions))[:, None]], where


def test_the_embeddings_of_an_image_stay_at_its_tokens_where_the_drafter_leaves_requests_out() -> None:
    """vLLM puts decodes first, so a request that is left out stands before a prompt with an image."""
    images = image_at(9, 10)  # the second and the third position of the prompt; "plain" is left out
    (embeddings, where), whole = part_of(batch(is_exact=True), [0, 1, 2, 4], mm_inputs=images)["mm_inputs"], lengths()
    assert where.nonzero().flatten().tolist() == [8, 9]
    assert (len(where), torch.cat(list(embeddings)).tolist()) == (sum(whole) - 1, [[0], [1]])
    assert part_of(batch(is_exact=True), [0, 1, 2, 4])["mm_inputs"] is None


@pytest.mark.usefixtures("_without_attention")
def test_the_head_reads_the_images_of_a_prompt_also_in_a_step_that_drafts_nothing() -> None:
    own = Backlog.__new__(Backlog)
    own._speculator, own._length, own._slots = Speculator(), 1000, None
    own._take_in(replace(step(batch(is_exact=True)), images=image_at(9, 11)), ())
    embeddings, where = own._speculator.images  # over 3 rows of "a", 1 of "c", and 3 of the prompt's 4
    assert where.tolist() == [False] * 5 + [True, False]
    assert torch.cat(list(embeddings)).tolist() == [[0]]
