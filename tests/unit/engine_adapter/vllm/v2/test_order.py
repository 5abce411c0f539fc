"""The order of a step's requests for recurrent layers, from vLLM's own code with the adapter's wrapper around it."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from vllm.v1.worker.gpu.model_runner import GPUModelRunner

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


@pytest.mark.parametrize("is_hybrid", [True, False])
def test_recurrent_layers_get_every_decode_before_a_prompt_of_any_length(
    is_hybrid: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise a decode without drafts would be read as a prompt, without its last accepted drafts."""
    for name in ("prepare_inputs", "gather_batch_req_state"):
        monkeypatch.setattr(GPUModelRunner, name, getattr(GPUModelRunner, name))
    installation._wrap_graphs()
    speculator = Speculator()
    attach(speculator, Steered())
    states = SimpleNamespace(
        req_id_to_index={name: at for at, name in enumerate(TOKENS)},
        prefill_len=SimpleNamespace(np=np.array([5, 9, 5])),
        num_computed_prefill_tokens=np.array([5, 0, 5]),
    )
    runner: Any = SimpleNamespace(
        speculator=speculator,
        model_config=SimpleNamespace(is_hybrid=is_hybrid),
        decode_query_len=1 + K_MAX,
        req_states=states,
        use_pp=False,
        adaptive_verification=None,
        pcp_manager=None,
    )
    scheduled = SimpleNamespace(
        num_scheduled_tokens=TOKENS,
        total_num_scheduled_tokens=sum(TOKENS.values()),
        scheduled_spec_decode_tokens={"drafted": [-1]},
    )
    batch, _ = GPUModelRunner.gather_batch_req_state(runner, scheduled, dummy_run=False)
    last_two = ["plain", "prompt"] if is_hybrid else ["prompt", "plain"]
    assert batch.req_ids == ["drafted", *last_two]
    assert runner.decode_query_len == 1 + K_MAX
