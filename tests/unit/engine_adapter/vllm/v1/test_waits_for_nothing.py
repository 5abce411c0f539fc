"""All that the adapter runs in a step waits for no accelerator: it runs where device tensors have no values at all.

The device is torch's meta device, on which whoever asks for a value fails, and `Apart` allows one way for a tensor of
the host to get there: a copy that is not waited for, of which `handed_over` is the only one (`test_rows` holds it to
pinned memory). An operation over tensors of both sides, which CUDA would copy for and wait, fails as well.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specpilot.engine_adapter.plan.step_plan import StepPlan
from specpilot.engine_adapter.vllm.embeddings import of_positions
from specpilot.engine_adapter.vllm.rows import POSITIONS_PER_PASS
from specpilot.engine_adapter.vllm.scheduler_output import forget_useless
from specpilot.engine_adapter.vllm.v1.backlog import Backlog
from specpilot.engine_adapter.vllm.v1.drafting import Drafting
from specpilot.engine_adapter.vllm.v1.subset import chosen, spread
from tests.support.device_apart import HIDDEN, K_MAX, META, NAMES, PASS, Apart, Drafter, Step


def test_a_spell_without_drafts_and_all_ways_to_catch_up(drafter: Drafter) -> None:
    drafting = Drafting(Backlog(drafter))
    rows = drafting.backlog.rows
    verified = SimpleNamespace(cu_num_sampled_tokens=torch.zeros(4, dtype=torch.int32, device=META))
    with Apart() as apart:
        for _ in range(5):
            Step([1] * 4).run(drafting, StepPlan(0), is_plain=True)
        assert len(rows) == 20
        assert apart.handed_over == 0  # a step at K = 0 hands nothing over
        Step([1, 8, 1, 3]).run(drafting, StepPlan(0), verified)  # a prompt and drafts that are verified: taken in
        assert (drafter.passes, len(rows)) == ([9], 24)
        Step([1] * 4).run(drafting, StepPlan(0, catch_up=("a",)))
        assert (drafter.passes, len(rows)) == ([9, 6], 18 + 4)
        Step([1] * 4).run(drafting, StepPlan(2, catch_up=("a", "b", "c"), left_out=("d",)))
        assert sum(drafter.passes) == 9 + 6 + 1 + 7 + 7
        assert len(drafter.passes) == 3
        assert rows.by_request().keys() == {"d"}
        ended = SimpleNamespace(
            scheduled_new_reqs=[],
            finished_req_ids={"d"},
            scheduled_cached_reqs=SimpleNamespace(resumed_req_ids=set()),
        )
        forget_useless(rows, ended)
        assert len(rows) == 0
    assert apart.handed_over > 10


def test_more_rows_than_a_pass_takes_and_rows_that_move(drafter: Drafter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECPILOT_ENGINE_BACKLOG_MIB", "0.003")  # 32 rows of 3 x 8 numbers, and 4 to spare
    drafting = Drafting(Backlog(drafter))
    with Apart():
        for _ in range(8):
            Step([1] * 4).run(drafting, StepPlan(0), is_plain=True)
        drafting.backlog.rows.forget(["b"])
        for _ in range(2):
            Step([1] * 4).run(drafting, StepPlan(0), is_plain=True)
        Step([1] * 4).run(drafting, StepPlan(3, catch_up=tuple(NAMES)))
    assert sum(drafter.passes) == 3 * 10 + 2
    assert max(drafter.passes) <= PASS


def arguments() -> dict[str, Any]:
    """What vLLM hands to `propose` in a step."""
    metadata = Step([1, 8, 1, 3]).metadata
    count = metadata.num_actual_tokens
    return {
        "target_token_ids": torch.zeros(count, dtype=torch.int32, device=META),
        "target_positions": torch.zeros(count, dtype=torch.int64, device=META),
        "target_hidden_states": torch.zeros(count, HIDDEN, device=META),
        "next_token_ids": torch.zeros(4, dtype=torch.int32, device=META),
        "token_indices_to_sample": torch.zeros(4, dtype=torch.int32, device=META),
        "num_rejected_tokens_gpu": torch.zeros(4, dtype=torch.int32, device=META),
        "sampling_metadata": SimpleNamespace(temperature=None),
        "common_attn_metadata": metadata,
    }


def test_a_batch_is_cut_and_put_together() -> None:
    with Apart() as apart:
        given, there = chosen(arguments(), [1, 3], META)
        drafts = spread(torch.zeros(2, K_MAX, dtype=torch.int64, device=META), there, 4)
    assert given["target_hidden_states"].shape == (11, HIDDEN)
    assert drafts.shape == (4, K_MAX)
    assert apart.handed_over == 1  # all indices in one piece


def test_image_embeddings_are_cut_with_the_batch() -> None:
    """vLLM keeps on the host where they lie. The last position of a prompt that is left out may be one's."""
    is_embedding = torch.zeros(13, dtype=torch.bool)
    is_embedding[[0, 2, 3, 11]] = True  # of the first request, two of the second's, of the fourth
    embeddings = [torch.zeros(3, HIDDEN, device=META), torch.zeros(1, HIDDEN, device=META)]
    with Apart():
        cut, _ = chosen(arguments() | {"mm_embed_inputs": (embeddings, is_embedding)}, [1, 3], META)
    kept, places = cut["mm_embed_inputs"]
    assert [len(part) for part in kept] == [3]
    assert places.nonzero().flatten().tolist() == [1, 2, 9]
    positions = torch.tensor([*range(1, 9), *range(10, 13)])
    kept, _ = of_positions(positions, [torch.arange(4.0)[:, None]], is_embedding, torch.device("cpu"))
    assert torch.cat(list(kept)).flatten().tolist() == [1.0, 2.0, 3.0]


def test_a_long_prompt_is_taken_in_by_bounded_passes(drafter: Drafter) -> None:
    """However many tokens a pass of the drafter takes: what a pass gathers is beyond the memory that vLLM measured."""
    length = 2 * POSITIONS_PER_PASS + 100
    drafter.max_num_tokens = 4 * POSITIONS_PER_PASS
    drafter.input_ids = torch.zeros(drafter.max_num_tokens, dtype=torch.int32, device=META)
    drafter.hidden_states = torch.zeros(drafter.max_num_tokens, HIDDEN, device=META)
    drafter.vllm_config.speculative_config.draft_model_config.max_model_len = 2 * length
    step = Step([1, length, 1, 1])
    step.metadata.seq_lens_cpu_upper_bound.fill_(length + 20)
    with Apart():
        step.run(Drafting(Backlog(drafter)), StepPlan(0))
    assert sum(drafter.passes) == length - 1
    assert max(drafter.passes) <= POSITIONS_PER_PASS == 4096


@pytest.mark.parametrize(
    "waits",
    [
        lambda device, host: device.tolist(),
        lambda device, host: device[device > 0],
        lambda device, host: bool((device == 0).all()),
        lambda device, host: device[host],
        lambda device, host: device + host,
        lambda device, host: host.to(META),
        lambda device, host: device.repeat_interleave(device),
    ],
)
def test_each_kind_of_wait_for_the_device_is_noticed(waits: Callable[[torch.Tensor, torch.Tensor], object]) -> None:
    device, host = torch.zeros(3, dtype=torch.int64, device=META), torch.arange(3)
    with Apart(), pytest.raises((AssertionError, RuntimeError)):
        waits(device, host)
