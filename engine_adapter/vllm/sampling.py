"""What vLLM's sampling gets wrong in an engine that speculates, and what is done about it.

- Thinking budgets: an engine that speculates finds a request's rows of logits by the drafts of those before it. Where a
  step has none it takes the first row for everybody's: the end of one request's thinking would be forced upon another.
- `logprob_token_ids`: a request with it, in a step that verifies drafts, ends the engine if it or another wants
  log-probabilities. Such a request is refused, as `min_p` and `logit_bias` are by vLLM.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vllm.exceptions import VLLMValidationError
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

from specpilot.engine_adapter.vllm.compat import is_steered


@contextmanager
def one_row_each(runner: Any, metadata: SpecDecodeMetadata | None) -> Iterator[None]:
    """Let thinking budgets know that each request of the `runner` has one row of logits, if a step verifies nothing.

    `metadata` says what it verifies, `None` for nothing.
    """
    budgets = runner.input_batch.thinking_budget_state_holder if metadata is None else None
    if budgets is None:
        yield
        return
    is_speculating, budgets.in_spec_mode = budgets.in_spec_mode, False
    try:
        yield
    finally:
        budgets.in_spec_mode = is_speculating


def refuse_unserved(params: Any, vllm_config: Any) -> None:
    """Raise `VLLMValidationError` for the `params` of a request that a steered engine cannot serve beside drafts."""
    is_asked = getattr(params, "logprob_token_ids", None) is not None
    if is_asked and vllm_config.speculative_config is not None and is_steered(vllm_config):
        raise VLLMValidationError(
            "The logprob_token_ids sampling parameter is not supported with speculative decoding: ask for logprobs.",
            parameter="logprob_token_ids",
        )
