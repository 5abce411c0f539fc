"""Adds what a request's headers state to its sampling parameters, and rejects those that would end a steered engine.

- `logprob_token_ids`: in a step that verifies drafts, a request with it ends the engine if this or another request
  asks for log-probabilities. vLLM itself rejects `min_p` and `logit_bias` in the same way.
- *Model runner V2*: a request with more stop tokens (beside `min_tokens`) or allowed tokens than its buffers hold would
  end the engine.
"""

from functools import cache, wraps
from typing import Any

from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.input_processor import InputProcessor

from specpilot.engine_adapter.agent.gateway_headers import stated_arguments
from specpilot.engine_adapter.vllm.engine_facts import is_steered, plans_drafts

MOST_STOPS = 120
"""vLLM's buffer holds 128 (`MAX_NUM_STOP_TOKEN_IDS`), including the model's own end tokens."""

MOST_ALLOWED = 1024
"""vLLM's `MAX_NUM_ALLOWED_TOKEN_IDS`."""


@cache
def install() -> None:
    """Wrap the check of sampling parameters in vLLM's `InputProcessor`, once in this process."""
    validate = InputProcessor._validate_params

    @wraps(validate)
    def validate_params(self: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        add_stated(params)
        refuse_unserved(params, self.vllm_config)
        return validate(self, params, *args, **kwargs)

    InputProcessor._validate_params = validate_params


def add_stated(params: Any) -> None:
    """Put the class and the ceiling that the request's headers state into `params`, over those of its body."""
    arguments = stated_arguments()
    if arguments and isinstance(params, SamplingParams):
        params.extra_args = {**(params.extra_args or {}), **arguments}


def refuse_unserved(params: Any, vllm_config: Any) -> None:
    """Raise `VLLMValidationError` for the `params` of a request that a steered engine cannot serve with drafts."""
    if vllm_config.speculative_config is None:
        return
    if getattr(params, "logprob_token_ids", None) is not None and is_steered(vllm_config):
        raise VLLMValidationError(
            "The logprob_token_ids sampling parameter is not supported with speculative decoding: ask for logprobs.",
            parameter="logprob_token_ids",
        )
    if vllm_config.use_v2_model_runner and plans_drafts(vllm_config):
        _refuse_too_many(params)


def _refuse_too_many(params: Any) -> None:
    """Raise `VLLMValidationError` for more tokens than model runner V2 has room for."""
    stops = getattr(params, "stop_token_ids", None) or ()
    if getattr(params, "min_tokens", 0) and len(stops) > MOST_STOPS:
        raise VLLMValidationError(
            f"With min_tokens there may be {MOST_STOPS} stop_token_ids, not {len(stops)}.", parameter="stop_token_ids"
        )
    allowed = getattr(params, "allowed_token_ids", None) or ()
    if len(allowed) > MOST_ALLOWED:
        raise VLLMValidationError(
            f"There may be {MOST_ALLOWED} allowed_token_ids, not {len(allowed)}.", parameter="allowed_token_ids"
        )
