"""A step's requests as vLLM's own code gathers them, with the adapter's wrapper around it.

Their order for recurrent layers, and the length that a rank in lockstep reports to the others.
"""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from vllm.v1.worker.gpu.dp_utils import DPSyncState, dispatch_cg_and_sync_dp
from vllm.v1.worker.gpu.model_runner import GPUModelRunner, get_uniform_decode_token_count

from specpilot.engine_adapter.vllm import versions
from specpilot.engine_adapter.vllm.v2 import installation
from specpilot.engine_adapter.vllm.v2.steered import Steered, attach

pytestmark = pytest.mark.skipif(
    not versions.is_among(versions.vllm_version(), versions.ACCEPTED_ON_V2), reason="this vLLM's V2 is not steered"
)

K_MAX = 3
TOKENS = {"plain": 1, "prompt": 1 + K_MAX, "drafted": 2}


class Speculator:
    pass


@pytest.fixture(autouse=True)
def _wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("prepare_inputs", "gather_batch_req_state"):
        monkeypatch.setattr(GPUModelRunner, name, getattr(GPUModelRunner, name))
    installation._wrap_graphs()


def runner(names: Iterable[str], prefill: list[int], computed: list[int], **more: Any) -> Any:
    speculator = Speculator()
    attach(speculator, Steered())
    states = SimpleNamespace(
        req_id_to_index={name: at for at, name in enumerate(names)},
        prefill_len=SimpleNamespace(np=np.array(prefill)),
        num_computed_prefill_tokens=np.array(computed),
    )
    plain = {"adaptive_verification": None, "model_config": SimpleNamespace(is_hybrid=False)}
    return SimpleNamespace(
        speculator=speculator,
        decode_query_len=1 + K_MAX,
        req_states=states,
        use_pp=False,
        pcp_manager=None,
        **(plain | more),
    )


@pytest.mark.parametrize("is_hybrid", [True, False])
def test_recurrent_layers_get_every_decode_before_a_prompt_of_any_length(
    is_hybrid: bool,
) -> None:
    """Otherwise a decode without drafts would be read as a prompt, without its last accepted drafts."""
    made = runner(TOKENS, [5, 9, 5], [5, 0, 5], model_config=SimpleNamespace(is_hybrid=is_hybrid))
    scheduled = SimpleNamespace(
        num_scheduled_tokens=TOKENS,
        total_num_scheduled_tokens=sum(TOKENS.values()),
        scheduled_spec_decode_tokens={"drafted": [-1]},
    )
    batch, _ = GPUModelRunner.gather_batch_req_state(made, scheduled, dummy_run=False)
    last_two = ["plain", "prompt"] if is_hybrid else ["prompt", "plain"]
    assert batch.req_ids == ["drafted", *last_two]
    assert made.decode_query_len == 1 + K_MAX


@pytest.mark.parametrize(("ranks", "length"), [(1, 1), (2, None)])
def test_a_rank_in_lockstep_reports_the_length_that_its_drafters_first_pass_has(ranks: int, length: int | None) -> None:
    """Adaptive verification has cut every draft to nothing. vLLM computes the length again, and asserts it."""
    made = runner(
        ("a", "b"),
        [5, 5],
        [5, 5],
        adaptive_verification=SimpleNamespace(get_num_tokens=lambda *_: 2),
        vllm_config=SimpleNamespace(
            parallel_config=SimpleNamespace(data_parallel_size=ranks), model_config=SimpleNamespace(is_moe=True)
        ),
    )
    scheduled = SimpleNamespace(
        num_scheduled_tokens={"a": 3, "b": 3},
        total_num_scheduled_tokens=6,
        scheduled_spec_decode_tokens={"a": [-1, -1], "b": [-1, -1]},
    )
    batch, found = GPUModelRunner.gather_batch_req_state(made, scheduled, dummy_run=False)
    assert (batch.num_tokens, found) == (2, length)
    if ranks > 1:
        agreed = DPSyncState(torch.tensor([2, 2]), found, eager=True, num_reqs=2)  # the other rank has the same
        longest = batch.num_scheduled_tokens.max()
        own = get_uniform_decode_token_count(2, batch.num_tokens, longest, batch.decode_graph_eligible)
        dispatch_cg_and_sync_dp(None, 2, batch.num_tokens, own, ranks, 0, dp_sync_state=agreed)
