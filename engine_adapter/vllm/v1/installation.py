"""Every wrapper of the adapter around methods of vLLM's classes for model runner V1.

Installed in every vLLM process by the `vllm.general_plugins` entry point, because runner and drafter may live in a
worker process. Each wrapper first checks whether the drafter is steered (`vllm.v1.drafting`). Engines with other
schedulers, and drafters of other kinds, run unchanged.

Wrapped methods of vLLM's model runner, the base of all its runners:

- `execute_model` begins a step: rows of requests that ended are dropped, a plain step runs as without speculation;
- `_prepare_inputs`: the input of a step that verifies nothing is prepared as without speculation;
- `sample_tokens`, `_sample`: after sampling and before drafting, the drafter catches up and rows are kept; a fault of
  vLLM's sampling is repaired (`sampling`);
- `_input_fits_in_drafter`: false in a step of width 0;
- `_check_and_update_cudagraph_mode`, `profile_cudagraph_memory`, `capture_model`, `_warmup_and_capture`,
  `_determine_batch_execution_and_padding`: CUDA graphs are captured and found for the steps of any K (`graphs`).

Wrapped outputs of the asynchronous loop, `AsyncGPUModelRunnerOutput`: they get the device's time (`device_time`).

Wrapped methods of its drafters:

- `load_model`: a steered drafter gets its backlog;
- `propose`: it prepares as many positions as the step's width, only for requests that are not left out.

A wrapper names the parameters that it reads as vLLM does, so it does not matter which of them vLLM passes by keyword.
"""

from contextlib import nullcontext
from functools import cache, wraps
from inspect import signature
from typing import Any

import torch
from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata
from vllm.v1.worker.gpu_model_runner import AsyncGPUModelRunnerOutput, GPUModelRunner

from specpilot.engine_adapter.errors import UnsupportedEngineError
from specpilot.engine_adapter.vllm.compat import attention_fault
from specpilot.engine_adapter.vllm.device_time import mark_steps
from specpilot.engine_adapter.vllm.engine_facts import is_steered
from specpilot.engine_adapter.vllm.scheduler_output import forget_useless, plan_of
from specpilot.engine_adapter.vllm.v1 import draft_width, sampling
from specpilot.engine_adapter.vllm.v1.backlog import Backlog
from specpilot.engine_adapter.vllm.v1.drafting import Drafting, attach, of_drafter, of_runner, use_plain_embeddings
from specpilot.engine_adapter.vllm.v1.graphs import (
    capture_length,
    captured,
    is_too_much,
    of_length,
    replace_dispatcher,
    say_captured,
)
from specpilot.engine_adapter.vllm.v1.subset import chosen, spread
from specpilot.engine_adapter.vllm.v1.undrafted import (
    as_without_speculation,
    is_plain,
    is_undrafted,
    reads_ahead,
    see_to_backlog,
)


@cache
def install() -> None:
    """Wrap vLLM's runner and drafters, once in this process."""
    _wrap_drafters()
    _wrap_runners()
    _wrap_graphs()
    mark_steps(AsyncGPUModelRunnerOutput)


def _wrap_drafters() -> None:
    init = SpecDecodeBaseProposer.__init__
    load, propose = SpecDecodeBaseProposer.load_model, SpecDecodeBaseProposer.propose
    after_width = [*signature(propose).parameters][2:]

    @wraps(init)
    def init_at_every_width(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        if is_steered(self.vllm_config):
            draft_width.warm_up(self)  # here, because vLLM accepts registrations only while it creates the runner

    @wraps(load)
    def load_with_backlog(self: Any, *args: Any, **kwargs: Any) -> None:
        load(self, *args, **kwargs)
        if is_steered(self.vllm_config):
            use_plain_embeddings(self)
            attach(self, Drafting(Backlog(self)))

    @wraps(propose)
    def propose_for_some(self: Any, num_speculative_tokens: int, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Draft `num_speculative_tokens` tokens per request: ids of shape [requests, width]."""
        drafting = of_drafter(self)
        if drafting is None:
            return propose(self, num_speculative_tokens, *args, **kwargs)
        draft_width.lay_out(self, num_speculative_tokens)
        places = drafting.places()
        if places is None:
            return propose(self, num_speculative_tokens, *args, **kwargs)
        arguments = dict(zip(after_width, args, strict=False)) | kwargs
        arguments, there = chosen(arguments, places, self.device)
        drafts = propose(self, num_speculative_tokens, **arguments)
        if self._last_draft_probs is not None:
            self._last_draft_probs = spread(self._last_draft_probs, there, len(drafting.batch))
        return spread(drafts, there, len(drafting.batch))

    SpecDecodeBaseProposer.__init__ = init_at_every_width
    SpecDecodeBaseProposer.load_model = load_with_backlog
    SpecDecodeBaseProposer.propose = propose_for_some


def _wrap_runners() -> None:
    execute_model, sample_tokens = GPUModelRunner.execute_model, GPUModelRunner.sample_tokens
    prepare, sample = GPUModelRunner._prepare_inputs, GPUModelRunner._sample
    fits = GPUModelRunner._input_fits_in_drafter

    @wraps(execute_model)
    def execute_plainly(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        drafting = of_runner(self)
        if drafting is None:
            return execute_model(self, scheduler_output, *args, **kwargs)
        forget_useless(drafting.backlog.rows, scheduler_output)
        drafting.plan, drafting.is_plain = plan_of(scheduler_output), is_plain(self, scheduler_output)
        return as_without_speculation(self, drafting.is_plain, execute_model, scheduler_output, *args, **kwargs)

    @wraps(prepare)
    def prepare_inputs(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        drafting = of_runner(self)
        is_hidden = drafting is not None and not drafting.is_plain and is_undrafted(self, scheduler_output)
        return as_without_speculation(self, is_hidden, prepare, scheduler_output, *args, **kwargs)

    @wraps(sample_tokens)
    def sample_tokens_noting(self: Any, grammar_output: Any) -> Any:
        drafting = of_runner(self)
        if drafting is None:
            return sample_tokens(self, grammar_output)
        state = self.execute_model_state
        if state is not None and reads_ahead(drafting, self, state):
            state = self.execute_model_state = drafting.backlog.beyond_passes(
                state, has_prompt_logprobs=bool(self.num_prompt_logprobs)
            )
        drafting.state = state
        drafting.batch = self.input_batch.req_ids
        try:
            return as_without_speculation(self, drafting.is_plain, sample_tokens, grammar_output)
        finally:
            drafting.state = None

    @wraps(sample)
    def sample_then_keep(
        self: Any, logits: torch.Tensor | None, spec_decode_metadata: SpecDecodeMetadata | None
    ) -> Any:
        drafting = of_runner(self)
        with sampling.one_row_each(self, spec_decode_metadata) if drafting is not None else nullcontext():
            output = sample(self, logits, spec_decode_metadata)
        if drafting is not None and drafting.state is not None:
            see_to_backlog(drafting, self, spec_decode_metadata, output.sampled_token_ids)
        return output

    @wraps(fits)
    def fits_if_it_drafts(self: Any, common_attn_metadata: Any) -> bool:
        drafting = of_runner(self)
        plan = drafting.plan if drafting is not None and drafting.state is not None else None
        return (plan is None or plan.width > 0) and fits(self, common_attn_metadata)

    GPUModelRunner.execute_model = execute_plainly
    GPUModelRunner._prepare_inputs = prepare_inputs
    GPUModelRunner.sample_tokens = sample_tokens_noting
    GPUModelRunner._sample = sample_then_keep
    GPUModelRunner._input_fits_in_drafter = fits_if_it_drafts


def _wrap_graphs() -> None:
    check, capture = GPUModelRunner._check_and_update_cudagraph_mode, GPUModelRunner._warmup_and_capture
    determine = GPUModelRunner._determine_batch_execution_and_padding
    profile, capture_model = GPUModelRunner.profile_cudagraph_memory, GPUModelRunner.capture_model
    takes_length = "profile_seq_lens" in signature(capture).parameters  # `reliance` does not list it

    @wraps(check)
    def make_keys_by_step(self: Any, attention_backends: Any, kv_cache_groups: Any, *args: Any, **kwargs: Any) -> Any:
        config = self.vllm_config
        if config.speculative_config is not None and is_steered(config):
            is_async = bool(config.scheduler_config.async_scheduling)
            fault = attention_fault(attention_backends, is_async=is_async)
            if fault is not None:
                raise UnsupportedEngineError(fault)
        replace_dispatcher(self, attention_backends, kv_cache_groups)
        return check(self, attention_backends, kv_cache_groups, *args, **kwargs)

    @wraps(profile)
    def profile_within_bounds(self: Any) -> int:
        estimate: int = profile(self)
        if is_too_much(self, estimate):
            estimate = profile(self)
        return estimate

    @wraps(capture)
    def capture_of_length(self: Any, desc: Any, cudagraph_runtime_mode: Any, *args: Any, **kwargs: Any) -> Any:
        if takes_length and kwargs.get("profile_seq_lens") is None:
            kwargs["profile_seq_lens"] = capture_length(self, desc)
        with captured(self, desc, cudagraph_runtime_mode):
            return capture(self, desc, cudagraph_runtime_mode, *args, **kwargs)

    @wraps(capture_model)
    def capture_and_say(self: Any, *args: Any, **kwargs: Any) -> Any:
        size = capture_model(self, *args, **kwargs)
        say_captured(self)
        return size

    @wraps(determine)
    def determine_of_length(
        self: Any,
        num_tokens: int,
        num_reqs: int,
        num_scheduled_tokens_np: Any,
        max_num_scheduled_tokens: int,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        with of_length(self, max_num_scheduled_tokens):
            return determine(
                self, num_tokens, num_reqs, num_scheduled_tokens_np, max_num_scheduled_tokens, *args, **kwargs
            )

    GPUModelRunner._check_and_update_cudagraph_mode = make_keys_by_step
    GPUModelRunner.profile_cudagraph_memory = profile_within_bounds
    GPUModelRunner._warmup_and_capture = capture_of_length
    GPUModelRunner._determine_batch_execution_and_padding = determine_of_length
    GPUModelRunner.capture_model = capture_and_say
