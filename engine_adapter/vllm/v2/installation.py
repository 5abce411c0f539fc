"""Every wrapper of the adapter around methods of vLLM's classes for model runner V2.

Installed in every vLLM process that may run V2, by the `vllm.general_plugins` entry point. Each wrapper first checks
whether the adapter's scheduler plans the speculator's steps. Engines with other schedulers run unchanged.

- `GPUModelRunner.execute_model` begins a step: rows of requests that ended are dropped, the step's plan is noted;
- `GPUModelRunner.initialize_kv_cache`, `prepare_inputs`: CUDA graphs are captured for the steps of any K, and attention
  reads a step with the lengths of its graph (`graphs`);
- `GPUModelRunner.gather_batch_req_state`: a step in which adaptive verification has cut every draft to 0 tokens is a
  uniform step of K = 0, and uses its graphs. Ranks in lockstep have vLLM's graphs, and agree on vLLM's length, which
  its drafter asserts. With recurrent layers, decodes without drafts come before every prompt: Mamba layers read what
  follows a prompt as prompts, from the state before the last accepted drafts. vLLM puts a part of a prompt that is as
  long as a decode with K_max drafts before them;
- `AsyncOutput`: an engine with adaptive verification reports the number of verified draft tokens (`verified_tokens`);
- `init_speculator`: a speculator of any kind gets its state (`steered`); a P-EAGLE head gets the speculator that vLLM
  lacks (`parallel_speculator`);
- `TargetDependentARSpeculator.load_model`: a head that does not read every step gets its backlog;
- `TargetDependentARSpeculator.propose`: it drafts for the requests and at the width of the plan (`proposal`);
- `VllmConfig._get_v2_model_runner_unsupported_features`: P-EAGLE is removed from the result if the environment selects
  V2. By default vLLM still runs P-EAGLE on V1.
"""

from functools import cache, wraps
from inspect import signature
from typing import Any

import torch
from vllm import envs
from vllm.config import VllmConfig
from vllm.v1.worker.gpu import model_runner
from vllm.v1.worker.gpu.async_utils import AsyncOutput, async_copy_to_np, stream
from vllm.v1.worker.gpu.model_runner import GPUModelRunner
from vllm.v1.worker.gpu.spec_decode.target_dependent_ar.speculator import TargetDependentARSpeculator

from specpilot.engine_adapter.errors import UnsupportedEngineError
from specpilot.engine_adapter.vllm.compat import attention_fault
from specpilot.engine_adapter.vllm.data_parallel import in_lockstep
from specpilot.engine_adapter.vllm.engine_facts import is_steered, plans_drafts, reads_every_step
from specpilot.engine_adapter.vllm.scheduler_output import forget_useless, plan_of
from specpilot.engine_adapter.vllm.v2.backlog import Backlog
from specpilot.engine_adapter.vllm.v2.graphs import replace_managers
from specpilot.engine_adapter.vllm.v2.parallel_speculator import ParallelEagleSpeculator
from specpilot.engine_adapter.vllm.v2.proposal import planned
from specpilot.engine_adapter.vllm.v2.steered import Steered, attach, of_speculator
from specpilot.engine_adapter.vllm.verified_tokens import report

_PARALLEL_EAGLE = "parallel drafting for EAGLE speculative decoding"
"""vLLM's name of the feature that its own V2 lacks."""
_IS_ADAPTIVE = [False]
"""Whether the steered engine of this process verifies adaptively: an output has no reference to its runner."""


@cache
def install() -> None:
    """Wrap vLLM's runner and speculators, once in this process."""
    _wrap_runner()
    _wrap_graphs()
    _wrap_speculators()
    _make_speculators()
    report(AsyncOutput, lambda: _IS_ADAPTIVE[0], _copied)


def _copied(tensor: torch.Tensor, main_stream: Any, copy_stream: Any) -> Any:
    """Begin the copy of a tensor to the host; it has arrived when later copies on the same stream have."""
    with stream(copy_stream, main_stream):
        copy_stream.wait_stream(main_stream)
        return async_copy_to_np(tensor)


def _wrap_runner() -> None:
    execute_model, initialize = GPUModelRunner.execute_model, GPUModelRunner.initialize_kv_cache

    @wraps(execute_model)
    def execute_noting(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        steered = of_speculator(self.speculator)
        if steered is not None:
            steered.plan = plan_of(scheduler_output)
            if steered.backlog is not None:
                forget_useless(steered.backlog.rows, scheduler_output)
        return execute_model(self, scheduler_output, *args, **kwargs)

    @wraps(initialize)
    def initialize_with_graphs(self: Any, *args: Any, **kwargs: Any) -> None:
        initialize(self, *args, **kwargs)
        if of_speculator(self.speculator) is not None:
            _IS_ADAPTIVE[:] = [self.adaptive_verification is not None]
            refuse_inexact(self)
            replace_managers(self)

    GPUModelRunner.execute_model = execute_noting
    GPUModelRunner.initialize_kv_cache = initialize_with_graphs


def _wrap_graphs() -> None:
    prepare, gather = GPUModelRunner.prepare_inputs, GPUModelRunner.gather_batch_req_state

    @wraps(prepare)
    def prepare_for_graph(self: Any, scheduler_output: Any, batch_req_state: Any, batch_desc: Any, *args: Any) -> Any:
        batch = prepare(self, scheduler_output, batch_req_state, batch_desc, *args)
        if of_speculator(self.speculator) is not None:
            if batch_desc.max_query_len is not None:
                batch.max_query_len = batch_desc.max_query_len
            elif batch.max_query_len is not None and batch_desc.uniform_token_count is not None:
                batch.max_query_len = batch_desc.uniform_token_count
        return batch

    @wraps(gather)
    def gather_uniform(self: Any, *args: Any, **kwargs: Any) -> Any:
        is_steered_here = of_speculator(self.speculator) is not None
        longest = self.decode_query_len
        if is_steered_here and self.model_config.is_hybrid:
            self.decode_query_len = 1
        try:
            batch, uniform = gather(self, *args, **kwargs)
        finally:
            self.decode_query_len = longest
        is_cut_to_one = batch is not None and batch.decode_graph_eligible and batch.num_tokens == len(batch.req_ids)
        if is_steered_here and is_cut_to_one and not in_lockstep(self.vllm_config):
            uniform = 1
        return batch, uniform

    GPUModelRunner.prepare_inputs = prepare_for_graph
    GPUModelRunner.gather_batch_req_state = gather_uniform


def refuse_inexact(runner: Any) -> None:
    """Raise `UnsupportedEngineError` for attention that cannot read decodes of different lengths exactly."""
    backends = [[group.backend for group in groups] for groups in runner.attn_groups]
    fault = attention_fault(backends, is_async=bool(runner.scheduler_config.async_scheduling))
    if fault is not None:
        raise UnsupportedEngineError(fault)


def _wrap_speculators() -> None:
    load, propose = TargetDependentARSpeculator.load_model, TargetDependentARSpeculator.propose
    names = [*signature(propose).parameters][1:]

    @wraps(load)
    def load_with_backlog(self: Any, *args: Any, **kwargs: Any) -> None:
        load(self, *args, **kwargs)
        steered = of_speculator(self)
        if steered is not None and not reads_every_step(self.vllm_config):
            steered.backlog = Backlog(self)

    @wraps(propose)
    def propose_for_some(self: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        steered = of_speculator(self)
        if steered is None or steered.plan is None:
            return propose(self, *args, **kwargs)
        return planned(self, steered, propose, dict(zip(names, args, strict=False)) | kwargs)

    TargetDependentARSpeculator.load_model = load_with_backlog
    TargetDependentARSpeculator.propose = propose_for_some


def _make_speculators() -> None:
    init, unsupported = model_runner.init_speculator, VllmConfig._get_v2_model_runner_unsupported_features

    @wraps(init)
    def init_steered(vllm_config: Any, device: torch.device, *args: Any, **kwargs: Any) -> Any:
        if not plans_drafts(vllm_config):
            return init(vllm_config, device, *args, **kwargs)
        is_p_eagle = is_steered(vllm_config) and not reads_every_step(vllm_config)
        is_p_eagle = is_p_eagle and vllm_config.speculative_config.parallel_drafting
        speculator = (
            ParallelEagleSpeculator(vllm_config, device) if is_p_eagle else init(vllm_config, device, *args, **kwargs)
        )
        attach(speculator, Steered())
        return speculator

    @wraps(unsupported)
    def unsupported_features(self: Any) -> list[str]:
        features: list[str] = unsupported(self)
        has_parallel_eagle = self.speculative_config is not None and is_steered(self) and envs.VLLM_USE_V2_MODEL_RUNNER
        return [name for name in features if name != _PARALLEL_EAGLE] if has_parallel_eagle else features

    model_runner.init_speculator = init_steered
    VllmConfig._get_v2_model_runner_unsupported_features = unsupported_features
