"""Steps without drafts, at the price of an engine without speculation.

vLLM treats every step of a speculating engine alike: it prepares the drafter's input, lays out the drafts to verify
and runs the rejection sampler even when there is nothing to draft and nothing to verify. At K = 0 that would be all
that is left of speculation, and for a small model a sixth of the step. So:

- a step whose drafts nobody wants (`num_spec_tokens_to_schedule` 0) is handled as one whose tokens do not fit into the
  drafter: vLLM then keeps the sampled tokens for the next step and neither prepares nor runs the drafter. What the
  drafter misses goes to its `backlog`, and through it before it next runs;
- a step that verifies no draft samples as an engine without speculation does; where the tokens stand is known without
  computing it.

Both give what vLLM would have given. A step with a single draft in it goes vLLM's own way.
"""

from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from engine_adapter.backlog import BACKLOG

_INSTALLED = "_specpilot_undrafted"
_NO_DRAFTER = "_specpilot_no_drafter"


def install() -> None:
    """Wrap `GPUModelRunner`, which all of vLLM's runners derive from, once in this process."""
    if getattr(GPUModelRunner, _INSTALLED, False):
        return
    calculate, sample = GPUModelRunner._calc_spec_decode_metadata, GPUModelRunner._sample
    sample_tokens, fits = GPUModelRunner.sample_tokens, GPUModelRunner._input_fits_in_drafter

    def calculate_undrafted(
        self: Any, num_draft_tokens: NDArray[np.int32], cu_num_scheduled_tokens: NDArray[np.int32]
    ) -> SpecDecodeMetadata:
        """Say at once where the sampled tokens stand when no request has a draft: at each request's last token."""
        if num_draft_tokens.any():
            return calculate(self, num_draft_tokens, cu_num_scheduled_tokens)
        return layout(cu_num_scheduled_tokens, self.device)

    def sample_undrafted(self: Any, logits: torch.Tensor | None, metadata: SpecDecodeMetadata | None) -> Any:
        """Sample without the rejection sampler when there is nothing to reject."""
        is_drafted = metadata is not None and metadata.max_spec_len > 0
        return sample(self, logits, metadata if is_drafted else None)

    @torch.inference_mode()
    def sample_tokens_noting(self: Any, grammar_output: Any) -> Any:
        state = self.execute_model_state
        if state is not None:
            setattr(self, _NO_DRAFTER, state.scheduler_output.num_spec_tokens_to_schedule == 0)
            backlog = getattr(getattr(self, "drafter", None), BACKLOG, None)
            if backlog is not None and state.spec_decode_common_attn_metadata is not None:
                if fits_if_wanted(self, state.spec_decode_common_attn_metadata):
                    backlog.catch_up(self, state)
                else:
                    backlog.keep(self, state)
        return sample_tokens(self, grammar_output)

    def fits_if_wanted(self: Any, common_attn_metadata: Any) -> bool:
        return not getattr(self, _NO_DRAFTER, False) and fits(self, common_attn_metadata)

    GPUModelRunner._calc_spec_decode_metadata = calculate_undrafted
    GPUModelRunner._sample = sample_undrafted
    GPUModelRunner.sample_tokens = sample_tokens_noting
    GPUModelRunner._input_fits_in_drafter = fits_if_wanted
    setattr(GPUModelRunner, _INSTALLED, True)


def layout(cu_num_scheduled_tokens: NDArray[np.int32], device: torch.device) -> SpecDecodeMetadata:
    """Return the layout of a step without drafts, from the running total of scheduled tokens [requests]."""
    requests = len(cu_num_scheduled_tokens)
    none, zeros, order, sampled = _constants(requests, device)
    return SpecDecodeMetadata(
        draft_token_ids=none,
        num_draft_tokens=[0] * requests,
        cu_num_draft_tokens=zeros,
        cu_num_sampled_tokens=sampled,
        target_logits_indices=none,
        bonus_logits_indices=order,
        logits_indices=torch.from_numpy(cu_num_scheduled_tokens - 1).to(device, non_blocking=True),
    )


@cache
def _constants(requests: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    """Nothing [0], then [requests] each: zeros, 0.., 1..; vLLM only reads them."""
    order = torch.arange(requests, dtype=torch.int32, device=device)
    return torch.zeros(0, dtype=torch.int32, device=device), torch.zeros_like(order), order, order + 1
