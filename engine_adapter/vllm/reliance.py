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

from specpilot.engine_adapter.vllm.reliance_items import Attributes, Behaviour, Item, Method, Names, Reads, title
from specpilot.engine_adapter.vllm.source import Use, VllmSource

_SCHEDULER = "v1/core/sched/scheduler.py"
_ASYNC_SCHEDULER = "v1/core/sched/async_scheduler.py"
_CORE = "v1/engine/core.py"
_CACHE = "v1/core/kv_cache_manager.py"

DIGESTS = Path(__file__).with_name("digests.json")
"""What was read. `tests/support/vllm_digests.py` writes it."""

Function = tuple[str, str | None, str]
"""File, class (None: a function of the module) and name."""

RELIANCE: tuple[Item, ...] = (
    # scheduler.py: the mixin over both schedulers; steps.py: the attributes of schedulers that it reads
    Method(
        _SCHEDULER, "Scheduler", "_update_after_schedule", ("scheduler_output",), Use.OVERRIDE,
        (_SCHEDULER, "Scheduler", "schedule"),
    ),
    Method(_SCHEDULER, "Scheduler", "schedule", (), Use.WRAP, (_CORE, "EngineCore", "step")),
    Method(_SCHEDULER, "Scheduler", "add_request", ("request",), Use.WRAP, (_CORE, "EngineCore", "add_request")),
    Reads(_SCHEDULER, "Scheduler", "schedule", ("num_spec_tokens",)),
    Attributes(_SCHEDULER, "Scheduler", ("num_spec_tokens", "kv_cache_config")),
    Method(
        _SCHEDULER, "Scheduler", "make_spec_decoding_stats",
        ("spec_decoding_stats", "num_draft_tokens", "num_accepted_tokens", "num_invalid_spec_tokens", "request_id"),
        Use.OVERRIDE, (_SCHEDULER, "Scheduler", "update_from_output"),
    ),
    Method(
        _SCHEDULER, "Scheduler", "update_from_output", ("scheduler_output", "model_runner_output"), Use.OVERRIDE,
        (_CORE, "EngineCore", "step"),
    ),
    Method(
        _SCHEDULER, "Scheduler", "update_draft_token_ids", ("draft_token_ids",), Use.OVERRIDE,
        (_CORE, "EngineCore", "post_step"),
    ),
    Method(
        _SCHEDULER, "Scheduler", "set_pause_state", ("pause_state",), Use.OVERRIDE,
        (_CORE, "EngineCore", "resume_scheduler"),
    ),
    Method(
        _SCHEDULER, "Scheduler", "_preempt_request", ("request",), Use.WRAP, (_SCHEDULER, "Scheduler", "schedule")
    ),
    Method(
        _SCHEDULER, "Scheduler", "_handle_stopped_request", ("request",), Use.WRAP,
        (_SCHEDULER, "Scheduler", "update_from_output"),
    ),
    Method(
        _SCHEDULER, "Scheduler", "_free_request", ("request",), Use.WRAP,
        (_SCHEDULER, "Scheduler", "update_from_output"),
    ),
    Method(
        _SCHEDULER, "Scheduler", "_free_request_blocks", ("request",), Use.OVERRIDE,
        (_SCHEDULER, "Scheduler", "_free_blocks"),
    ),
    Method(_SCHEDULER, "Scheduler", "shutdown", (), Use.OVERRIDE),
    Method(_SCHEDULER, "Scheduler", "has_unfinished_requests", (), Use.CALL),
    Attributes(_SCHEDULER, "Scheduler", ("requests", "running", "vllm_config", "kv_cache_manager")),
    Method(_ASYNC_SCHEDULER, "AsyncScheduler", "_update_after_schedule", ("scheduler_output",), Use.OVERRIDE),
    Reads(_ASYNC_SCHEDULER, "AsyncScheduler", "_update_after_schedule", ("spec_token_ids",)),
    Attributes(
        "v1/core/sched/output.py", "SchedulerOutput",
        (
            "num_scheduled_tokens", "scheduled_spec_decode_tokens", "finished_req_ids", "num_spec_tokens_to_schedule",
            "scheduled_new_reqs", "scheduled_cached_reqs", "total_num_scheduled_tokens",
        ),
    ),
    Attributes("v1/core/sched/output.py", "NewRequestData", ("req_id",)),
    Attributes("v1/core/sched/output.py", "CachedRequestData", ("resumed_req_ids",)),
    Attributes("v1/engine/__init__.py", "EngineCoreOutputs", ("outputs",)),
    Attributes("v1/engine/__init__.py", "EngineCoreOutput", ("request_id", "new_token_ids")),
    Attributes(
        "v1/request.py", "Request",
        (
            "request_id", "sampling_params", "spec_token_ids", "is_prefill_chunk", "num_computed_tokens",
            "use_structured_output", "max_tokens", "num_output_tokens", "num_output_placeholders", "mm_features",
            "arrival_time",
        ),
    ),
    Attributes(
        "sampling_params.py", "SamplingParams", ("extra_args", "temperature", "min_tokens", "all_stop_token_ids")
    ),
    # parameters.py: arguments from headers, refused requests
    Names("sampling_params.py", ("SamplingParams",)),
    Method(
        "v1/engine/input_processor.py", "InputProcessor", "_validate_params", ("params",), Use.WRAP,
        ("v1/engine/input_processor.py", "InputProcessor", "process_inputs"),
    ),
    Attributes("v1/engine/input_processor.py", "InputProcessor", ("vllm_config",)),
    Attributes("sampling_params.py", "SamplingParams", ("logprob_token_ids",)),
    Names("exceptions.py", ("VLLMValidationError",)),
    Attributes("v1/outputs.py", "DraftTokenIds", ("req_ids", "draft_token_ids")),
    Method(_CACHE, "KVCacheManager", "get_block_ids", ("request_id",), Use.CALL),
    Method(_CACHE, "KVCacheManager", "evict_blocks", ("block_ids",), Use.CALL),
    Attributes(_CACHE, "KVCacheManager", ("coordinator",)),
    Attributes("v1/core/kv_cache_coordinator.py", "KVCacheCoordinator", ("single_type_managers",)),
    Attributes("v1/core/single_type_kv_cache_manager.py", "SingleTypeKVCacheManager", ("block_size",)),
    # what wrapped methods rely on: sessions and replies, the prefix cache, room in a step, which runner runs
    Behaviour(
        _SCHEDULER, "Scheduler", ("_update_request_with_output", "_update_request_as_session", "_free_blocks")
    ),
    Behaviour(_CORE, "EngineCore", ("step_with_batch_queue",)),
    Behaviour("v1/core/block_pool.py", "BlockPool", ("evict_blocks",)),
    Behaviour("v1/core/single_type_kv_cache_manager.py", "SingleTypeKVCacheManager", ("cache_blocks",)),
    Behaviour("v1/core/kv_cache_utils.py", None, ("get_request_block_hasher",)),
    Behaviour("config/speculative.py", "SpeculativeConfig", ("max_num_new_slots_for_drafting",)),
    Behaviour("config/vllm.py", "VllmConfig", ("use_v2_model_runner",)),
    # compat.py, engine_facts.py: the configuration of an engine
    Attributes(
        "config/vllm.py", "VllmConfig",
        (
            "num_speculative_tokens", "use_v2_model_runner", "speculative_config", "parallel_config",
            "scheduler_config", "model_config", "kv_transfer_config",
        ),
    ),
    Attributes(
        "config/speculative.py", "SpeculativeConfig",
        (
            "method", "num_speculative_tokens_per_batch_size", "draft_model_config", "num_speculative_tokens",
            "parallel_drafting",
        ),
    ),
    # engine_args.py
    Names("platforms/__init__.py"),
    Method("platforms/interface.py", "Platform", "is_cuda", (), Use.CALL),
    Method("engine/arg_utils.py", "EngineArgs", "create_engine_config", (), Use.WRAP),
    Names("v1/attention/selector.py", ("get_attn_backend",)),
    Names("config/__init__.py", ("set_current_vllm_config",)),
    Attributes(
        "engine/arg_utils.py", "EngineArgs",
        (
            "dtype", "quantization", "speculative_config", "per_request_spec_decode_metrics", "max_num_seqs",
            "enforce_eager", "max_cudagraph_capture_size", "cudagraph_capture_sizes", "compilation_config",
            "async_scheduling", "data_parallel_size",
        ),
    ),
    Attributes(
        "config/parallel.py", "ParallelConfig",
        (
            "data_parallel_size", "data_parallel_size_local", "data_parallel_index", "data_parallel_rank_local",
            "data_parallel_backend", "data_parallel_external_lb", "local_engines_only", "pipeline_parallel_size",
            "decode_context_parallel_size", "prefill_context_parallel_size", "distributed_executor_backend",
            "world_size",
        ),
    ),
    Attributes(
        "config/scheduler.py", "SchedulerConfig",
        ("max_num_seqs", "async_scheduling", "max_num_batched_tokens", "scheduler_cls"),
    ),
    Attributes(
        "config/model.py", "ModelConfig",
        (
            "served_model_name", "max_model_len", "hf_config", "hf_text_config", "dtype", "is_multimodal_model",
            "enable_prompt_embeds", "is_hybrid", "is_moe",
        ),
    ),
    Method("config/model.py", "ModelConfig", "get_hidden_size", (), Use.CALL),
    Method("config/model.py", "ModelConfig", "get_sliding_window", (), Use.CALL),
    # engine_facts.py, and graphs of either runner
    Names("config/__init__.py", ("CUDAGraphMode",)),
    Attributes(
        "config/compilation.py", "CompilationConfig",
        ("cudagraph_capture_sizes", "max_cudagraph_capture_size", "compile_sizes"),
    ),
    # graph_record.py: the list of graphs
    Method(
        _CORE, "EngineCore", "_initialize_kv_caches", ("vllm_config",), Use.WRAP, (_CORE, "EngineCore", "__init__")
    ),
    Attributes(_CORE, "EngineCore", ("model_executor",)),
    Method("v1/executor/abstract.py", "Executor", "collective_rpc", ("method",), Use.CALL),
    Attributes("v1/worker/worker_base.py", "WorkerBase", ("model_runner",)),
    # plugin.py and endpoint.py: the runners, the control route
    Names("triton_utils/__init__.py", ("HAS_TRITON",)),
    Attributes(_CORE, "EngineCore", ("scheduler",)),
    Method("v1/engine/core_client.py", "AsyncMPClient", "_call_utility_async", ("method", "engine"), Use.CALL),
    Attributes("v1/engine/core_client.py", "AsyncMPClient", ("core_engines",)),
    Attributes("v1/engine/async_llm.py", "AsyncLLM", ("engine_core",)),
    Attributes("plugins/endpoint_plugins/interface.py", "EndpointPlugin", ("name", "required_tasks")),
    Method("plugins/endpoint_plugins/interface.py", "EndpointPlugin", "attach_router", ("app",), Use.OVERRIDE),
    Method(
        "plugins/endpoint_plugins/interface.py", "EndpointPlugin", "init_state", ("engine_client", "state", "args"),
        Use.OVERRIDE,
    ),
)  # fmt: skip


def lacking(source: VllmSource, reliance: Iterable[Item]) -> tuple[str, ...]:
    """Return the items of the `reliance` that `source` lacks, in words; empty if it has all."""
    return tuple(words for item in reliance for words in item.lacking(source))


def functions(reliance: Iterable[Item]) -> list[Function]:
    """Return the functions of vLLM whose code matters to the items of the `reliance`, in order of file and name."""
    relied_on: set[Function] = set()
    for item in reliance:
        if isinstance(item, Method):
            relied_on |= {(item.file, item.owner, item.name)} | ({item.caller} if item.caller is not None else set())
        elif isinstance(item, Reads):
            relied_on.add((item.file, item.owner, item.method))
        elif isinstance(item, Behaviour):
            relied_on |= {(item.file, item.owner, name) for name in item.methods}
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
