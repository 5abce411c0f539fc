"""The parts of vLLM that the adapter relies on with either model runner; `v1/` and `v2/` have lists of their own.

Most of them are not public. So the list is compared with vLLM's own source (`source`) before an engine starts, and in
the tests, which also compare it with the adapter's code: everything that the adapter imports, overrides or wraps must
be listed.

A method that the adapter overrides or wraps has no effect if vLLM no longer calls it: `caller` names the method that
must. What a method does is for people to read, and for the tests with real engines. The list has a digest of each
(`digests.json`), so that a change is noticed.
"""

import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from specpilot.engine_adapter.vllm.reliance_items import Item, Method, items, title
from specpilot.engine_adapter.vllm.source import VllmSource

DIGESTS = Path(__file__).with_name("digests.json")
"""What was read. `tests/support/vllm_digests.py` writes it."""

Function = tuple[str, str | None, str]
"""File, class (None: a function of the module) and name."""

RELIANCE = items("""
# scheduler.py: the mixin over both schedulers; steps.py: the attributes of schedulers that it reads
v1/core/sched/scheduler.py Scheduler
    override _update_after_schedule(scheduler_output) by schedule
    wrap schedule() by v1/engine/core.py EngineCore.step
    wrap add_request(request) by v1/engine/core.py EngineCore.add_request
    lookup schedule: num_spec_tokens
    override make_spec_decoding_stats(spec_decoding_stats, num_draft_tokens, num_accepted_tokens,
        num_invalid_spec_tokens, request_id) by update_from_output
    override update_from_output(scheduler_output, model_runner_output) by v1/engine/core.py EngineCore.step
    override update_draft_token_ids(draft_token_ids) by v1/engine/core.py EngineCore.post_step
    override set_pause_state(pause_state) by v1/engine/core.py EngineCore.resume_scheduler
    wrap _preempt_request(request) by schedule
    wrap _handle_stopped_request(request) by update_from_output
    wrap _free_request(request) by update_from_output
    override _free_request_blocks(request) by _free_blocks
    override shutdown()
    call has_unfinished_requests()
    has num_spec_tokens kv_cache_config requests running vllm_config kv_cache_manager
v1/core/sched/async_scheduler.py AsyncScheduler
    override _update_after_schedule(scheduler_output)
    lookup _update_after_schedule: spec_token_ids
v1/core/sched/output.py SchedulerOutput
    has num_scheduled_tokens scheduled_spec_decode_tokens finished_req_ids num_spec_tokens_to_schedule
        scheduled_new_reqs scheduled_cached_reqs total_num_scheduled_tokens
v1/core/sched/output.py NewRequestData
    has req_id
v1/core/sched/output.py CachedRequestData
    has resumed_req_ids
v1/engine/__init__.py EngineCoreOutputs
    has outputs
v1/engine/__init__.py EngineCoreOutput
    has request_id new_token_ids
v1/request.py Request
    has request_id sampling_params spec_token_ids is_prefill_chunk num_computed_tokens use_structured_output max_tokens
        num_output_tokens num_output_placeholders mm_features arrival_time
sampling_params.py SamplingParams
    has extra_args temperature min_tokens all_stop_token_ids

# parameters.py: arguments from headers, refused requests
sampling_params.py
    has SamplingParams
v1/engine/input_processor.py InputProcessor
    wrap _validate_params(params) by process_inputs
    has vllm_config
sampling_params.py SamplingParams
    has logprob_token_ids
exceptions.py
    has VLLMValidationError
v1/outputs.py DraftTokenIds
    has req_ids draft_token_ids
v1/core/kv_cache_manager.py KVCacheManager
    call get_block_ids(request_id)
    call evict_blocks(block_ids)
    has coordinator
v1/core/kv_cache_coordinator.py KVCacheCoordinator
    has single_type_managers
v1/core/single_type_kv_cache_manager.py SingleTypeKVCacheManager
    has block_size

# what wrapped methods rely on: sessions and replies, the prefix cache, room in a step, which runner runs
v1/core/sched/scheduler.py Scheduler
    meaning _update_request_with_output _update_request_as_session _free_blocks
v1/engine/core.py EngineCore
    meaning step_with_batch_queue
v1/core/block_pool.py BlockPool
    meaning evict_blocks
v1/core/single_type_kv_cache_manager.py SingleTypeKVCacheManager
    meaning cache_blocks
v1/core/kv_cache_utils.py
    meaning get_request_block_hasher
config/speculative.py SpeculativeConfig
    meaning max_num_new_slots_for_drafting
config/vllm.py VllmConfig
    meaning use_v2_model_runner

# compat.py, engine_facts.py: the configuration of an engine
config/vllm.py VllmConfig
    has num_speculative_tokens use_v2_model_runner speculative_config parallel_config scheduler_config model_config
        kv_transfer_config
config/speculative.py SpeculativeConfig
    has method num_speculative_tokens_per_batch_size draft_model_config num_speculative_tokens parallel_drafting

# engine_args.py
platforms/__init__.py
platforms/interface.py Platform
    call is_cuda()
engine/arg_utils.py EngineArgs
    wrap create_engine_config()
    has dtype quantization speculative_config per_request_spec_decode_metrics max_num_seqs enforce_eager
        max_cudagraph_capture_size cudagraph_capture_sizes compilation_config async_scheduling data_parallel_size
v1/attention/selector.py
    has get_attn_backend
config/__init__.py
    has set_current_vllm_config
config/parallel.py ParallelConfig
    has data_parallel_size data_parallel_size_local data_parallel_index data_parallel_rank_local data_parallel_backend
        data_parallel_external_lb local_engines_only pipeline_parallel_size decode_context_parallel_size
        prefill_context_parallel_size distributed_executor_backend world_size
config/scheduler.py SchedulerConfig
    has max_num_seqs async_scheduling max_num_batched_tokens scheduler_cls
config/model.py ModelConfig
    call get_hidden_size()
    call get_sliding_window()
    has served_model_name max_model_len hf_config hf_text_config dtype is_multimodal_model enable_prompt_embeds
        is_hybrid is_moe

# engine_facts.py, and graphs of either runner
config/__init__.py
    has CUDAGraphMode
config/compilation.py CompilationConfig
    has cudagraph_capture_sizes max_cudagraph_capture_size compile_sizes

# graph_record.py: the list of graphs
v1/engine/core.py EngineCore
    wrap _initialize_kv_caches(vllm_config) by __init__
    has model_executor
v1/executor/abstract.py Executor
    call collective_rpc(method)
v1/worker/worker_base.py WorkerBase
    has model_runner

# plugin.py and endpoint.py: the runners, the control route
triton_utils/__init__.py
    has HAS_TRITON
v1/engine/core.py EngineCore
    has scheduler
v1/engine/core_client.py AsyncMPClient
    call _call_utility_async(method, engine)
    has core_engines
v1/engine/async_llm.py AsyncLLM
    has engine_core
plugins/endpoint_plugins/interface.py EndpointPlugin
    override attach_router(app)
    override init_state(engine_client, state, args)
    has name required_tasks
""")


def lacking(source: VllmSource, reliance: Iterable[Item]) -> tuple[str, ...]:
    """Return the items of the `reliance` that `source` lacks, in words; empty if it has all."""
    return tuple(words for item in reliance for words in item.lacking(source))


def functions(reliance: Iterable[Item]) -> list[Function]:
    """Return the functions of vLLM whose code matters to the items of the `reliance`, in order of file and name."""
    relied_on: set[Function] = set()
    for item in reliance:
        if isinstance(item, Method):
            relied_on |= {(item.file, item.owner, item.name)} | ({item.caller} if item.caller is not None else set())
        elif item.kind in ("lookup", "meaning"):
            methods = (item.method,) if item.kind == "lookup" else item.names
            relied_on |= {(item.file, item.owner, name) for name in methods}
    return sorted(relied_on, key=lambda function: (function[0], title(*function[1:])))


def changed(source: VllmSource, minor: str, reliance: Iterable[Item]) -> tuple[str, ...]:
    """Return the functions of the `reliance` whose code in `source` is not the one read of the version `minor`."""
    table = digests()
    return tuple(
        title(*function[1:])
        for function in functions(reliance)
        if (read := _digest_in(minor, table.get(key(function), {}))) and source.digest(*function) != read
    )


@cache
def digests() -> dict[str, dict[str, str]]:
    """Return the digests of the code that was read: by function (`key`), then by the first version that has it."""
    return dict(json.loads(DIGESTS.read_text(encoding="utf-8")))


def key(function: Function) -> str:
    """Return the name of a function in the table of digests."""
    return f"{function[0]} {title(*function[1:])}"


def _digest_in(minor: str, since: Mapping[str, str]) -> str | None:
    """Return the digest that a function has in a version; `None` if the first one that was read is a later one."""
    return next((digest for first, digest in [*since.items()][::-1] if _number(first) <= _number(minor)), None)


def _number(minor: str) -> list[int]:
    return [int(part) for part in minor.split(".")]
