"""What of vLLM the adapter relies on: every class, method, parameter and attribute, in one list.

Most of it is not public. So the list is checked against vLLM's own source (`source`) before an engine starts, and
in the tests, which also compare it with the adapter's code: what the adapter imports, overrides or wraps must be here.

A method that the adapter overrides or wraps is worthless when vLLM no longer calls it: `caller` names the method that
must. What the list cannot say is what a method means; that is what running the tests with a version is for.
"""

from collections.abc import Iterable

from specpilot.engine_adapter.vllm.reliance_items import Attributes, Item, Method, Names, Reads, Record
from specpilot.engine_adapter.vllm.source import Use, VllmSource

_SCHEDULER = "v1/core/sched/scheduler.py"
_ASYNC_SCHEDULER = "v1/core/sched/async_scheduler.py"
_RUNNER = "v1/worker/gpu_model_runner.py"
_PROPOSER = "v1/spec_decode/llm_base_proposer.py"
_CORE = "v1/engine/core.py"
_DISPATCHER = "v1/cudagraph_dispatcher.py"

RELIANCE: tuple[Item, ...] = (
    # scheduler.py: the mixin over both schedulers; steps.py: what it reads of theirs
    Method(
        _SCHEDULER, "Scheduler", "_update_after_schedule", ("scheduler_output",), Use.OVERRIDE,
        (_SCHEDULER, "Scheduler", "schedule"),
    ),
    Method(_SCHEDULER, "Scheduler", "schedule", (), Use.WRAP, (_CORE, "EngineCore", "step")),
    Method(_RUNNER, "AsyncGPUModelRunnerOutput", "get_output", (), Use.WRAP),  # device_time.py
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
        ),
    ),
    Attributes(
        "sampling_params.py", "SamplingParams", ("extra_args", "temperature", "min_tokens", "all_stop_token_ids")
    ),
    # sampling.py: how thinking budgets find a request's logits, what is refused
    Reads(
        "v1/sample/thinking_budget_state.py", "ThinkingBudgetStateHolder", "_apply_forcing_to_logits",
        ("in_spec_mode",),
    ),
    Method(
        "v1/engine/input_processor.py", "InputProcessor", "_validate_params", ("params",), Use.WRAP,
        ("v1/engine/input_processor.py", "InputProcessor", "process_inputs"),
    ),
    Attributes("v1/engine/input_processor.py", "InputProcessor", ("vllm_config",)),
    Attributes("sampling_params.py", "SamplingParams", ("logprob_token_ids",)),
    Names("exceptions.py", ("VLLMValidationError",)),
    Attributes("v1/outputs.py", "DraftTokenIds", ("req_ids", "draft_token_ids")),
    Method("v1/core/kv_cache_manager.py", "KVCacheManager", "get_block_ids", ("request_id",), Use.CALL),
    Method("v1/core/kv_cache_manager.py", "KVCacheManager", "evict_blocks", ("block_ids",), Use.CALL),
    Attributes("v1/core/kv_cache_manager.py", "KVCacheManager", ("coordinator",)),
    Attributes("v1/core/kv_cache_coordinator.py", "KVCacheCoordinator", ("single_type_managers",)),
    Attributes("v1/core/single_type_kv_cache_manager.py", "SingleTypeKVCacheManager", ("block_size",)),
    # compat.py: what an engine was started with
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
    Attributes(
        "config/parallel.py", "ParallelConfig",
        (
            "data_parallel_size", "data_parallel_index", "pipeline_parallel_size", "decode_context_parallel_size",
            "prefill_context_parallel_size",
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
            "enable_prompt_embeds",
        ),
    ),
    Method("config/model.py", "ModelConfig", "get_hidden_size", (), Use.CALL),
    Method("config/model.py", "ModelConfig", "get_sliding_window", (), Use.CALL),
    # draft_width.py, subset.py: how wide the drafter drafts, and for whom
    Names("v1/spec_decode/utils.py"),
    Method(
        _PROPOSER, "SpecDecodeBaseProposer", "__init__", ("vllm_config", "device"), Use.WRAP,
        ("v1/spec_decode/eagle.py", "EagleProposer", "__init__"),
    ),
    Method(
        _PROPOSER, "SpecDecodeBaseProposer", "propose",
        (
            "num_speculative_tokens", "target_token_ids", "target_positions", "target_hidden_states", "next_token_ids",
            "token_indices_to_sample", "common_attn_metadata", "sampling_metadata", "mm_embed_inputs",
            "num_rejected_tokens_gpu",
        ),
        Use.WRAP, (_RUNNER, "GPUModelRunner", "propose_draft_token_ids"),
    ),
    Attributes("v1/sample/metadata.py", "SamplingMetadata", ("temperature",)),
    Reads(_RUNNER, "GPUModelRunner", "propose_draft_token_ids", ("num_spec_tokens_to_schedule",)),
    Attributes(
        _PROPOSER, "SpecDecodeBaseProposer",
        ("parallel_drafting", "pass_hidden_states_to_model", "_last_draft_probs"),
    ),
    Reads(
        _PROPOSER, "SpecDecodeBaseProposer", "set_inputs_first_pass",
        ("extra_slots_per_request", "net_num_new_slots_per_request"),
    ),
    # backlog.py: the drafter catches up
    Method(
        _PROPOSER, "SpecDecodeBaseProposer", "load_model", ("target_model",), Use.WRAP,
        (_RUNNER, "GPUModelRunner", "load_model"),
    ),
    Attributes(
        _PROPOSER, "SpecDecodeBaseProposer",
        (
            "method", "device", "dtype", "hidden_size", "max_num_tokens", "vllm_config", "input_ids",
            "hidden_states", "block_size", "num_speculative_tokens", "parallel_drafting_token_id",
        ),
    ),
    Reads(_PROPOSER, "SpecDecodeBaseProposer", "propose", ("model",)),
    Names("forward_context.py", ("set_forward_context",)),
    Attributes(_RUNNER, "GPUModelRunner", ("input_batch", "input_ids", "num_prompt_logprobs")),
    Method(_RUNNER, "GPUModelRunner", "_get_positions", ("num_tokens",), Use.CALL),
    Attributes("v1/worker/gpu_input_batch.py", "InputBatch", ("req_ids", "thinking_budget_state_holder")),
    Record(
        "v1/attention/backend.py", "CommonAttentionMetadata",
        (
            "query_start_loc", "query_start_loc_cpu", "seq_lens", "seq_lens_cpu_upper_bound", "num_reqs",
            "num_actual_tokens", "max_query_len", "max_seq_len", "block_table_tensor", "slot_mapping", "causal",
        ),
    ),
    Method(_PROPOSER, "SpecDecodeBaseProposer", "_set_positions", ("num_tokens", "positions"), Use.CALL),
    Method(
        _PROPOSER, "SpecDecodeBaseProposer", "build_per_group_and_layer_attn_metadata", ("common_attn_metadata",),
        Use.CALL,
    ),
    Method(_PROPOSER, "SpecDecodeBaseProposer", "_determine_batch_execution_and_padding", ("num_tokens",), Use.CALL),
    Method(
        _PROPOSER, "SpecDecodeBaseProposer", "build_model_inputs_first_pass",
        ("num_tokens", "num_input_tokens", "mm_embed_inputs"), Use.CALL,
    ),
    Method(_PROPOSER, "SpecDecodeBaseProposer", "_get_slot_mapping", ("num_tokens", "slot_mapping"), Use.CALL),
    # installation.py, undrafted.py: steps without drafts
    Method(_RUNNER, "GPUModelRunner", "execute_model", ("scheduler_output",), Use.WRAP),
    Method(
        _RUNNER, "GPUModelRunner", "_prepare_inputs", ("scheduler_output", "num_scheduled_tokens"), Use.OVERRIDE,
        (_RUNNER, "GPUModelRunner", "execute_model"),
    ),
    Reads(_RUNNER, "GPUModelRunner", "execute_model", ("speculative_config",)),
    Reads(_RUNNER, "GPUModelRunner", "sample_tokens", ("speculative_config",)),
    Reads(_RUNNER, "GPUModelRunner", "_build_attention_metadata", ("speculative_config",)),
    Method(
        _RUNNER, "GPUModelRunner", "_sample", ("logits", "spec_decode_metadata"), Use.OVERRIDE,
        (_RUNNER, "GPUModelRunner", "sample_tokens"),
    ),
    Method(_RUNNER, "GPUModelRunner", "sample_tokens", ("grammar_output",), Use.OVERRIDE),
    Method(
        _RUNNER, "GPUModelRunner", "_input_fits_in_drafter", ("common_attn_metadata",), Use.OVERRIDE,
        (_RUNNER, "GPUModelRunner", "sample_tokens"),
    ),
    Attributes(
        _RUNNER, "GPUModelRunner",
        ("execute_model_state", "speculative_config", "model_config"),
    ),
    Attributes("config/model.py", "ModelConfig", ("is_hybrid",)),
    Attributes(
        _RUNNER, "ExecuteModelState",
        ("scheduler_output", "spec_decode_common_attn_metadata", "hidden_states", "aux_hidden_states"),
    ),
    Attributes("v1/spec_decode/metadata.py", "SpecDecodeMetadata", ("cu_num_sampled_tokens",)),
    Names("v1/sample/rejection_sampler.py", ("PLACEHOLDER_TOKEN_ID",)),
    Attributes("v1/outputs.py", "SamplerOutput", ("sampled_token_ids",)),
    # graphs.py: CUDA graphs for the query lengths that K takes
    Method(
        _RUNNER, "GPUModelRunner", "_check_and_update_cudagraph_mode", ("attention_backends", "kv_cache_groups"),
        Use.WRAP, (_RUNNER, "GPUModelRunner", "initialize_attn_backend"),
    ),
    Method(
        _RUNNER, "GPUModelRunner", "_warmup_and_capture", ("desc", "cudagraph_runtime_mode"), Use.WRAP,
        (_RUNNER, "GPUModelRunner", "_capture_cudagraphs"),
    ),
    Method(
        _RUNNER, "GPUModelRunner", "_determine_batch_execution_and_padding",
        ("num_tokens", "num_reqs", "num_scheduled_tokens_np", "max_num_scheduled_tokens"), Use.WRAP,
        (_RUNNER, "GPUModelRunner", "execute_model"),
    ),
    Method(_RUNNER, "GPUModelRunner", "capture_model", (), Use.WRAP),
    Method(_RUNNER, "GPUModelRunner", "profile_cudagraph_memory", (), Use.WRAP),
    Attributes("v1/attention/backend.py", "AttentionCGSupport", ("ALWAYS",)),
    Reads(
        _RUNNER, "GPUModelRunner", "_determine_batch_execution_and_padding",
        ("uniform_decode_query_len", "cudagraph_dispatcher"),
    ),
    Reads(_RUNNER, "GPUModelRunner", "_dummy_run", ("uniform_decode_query_len",)),
    Reads(_RUNNER, "GPUModelRunner", "_check_and_update_cudagraph_mode", ("cudagraph_dispatcher",)),
    Method(
        _DISPATCHER, "CudagraphDispatcher", "initialize_cudagraph_keys",
        ("cudagraph_mode", "uniform_decode_query_len"), Use.OVERRIDE,
        (_RUNNER, "GPUModelRunner", "_check_and_update_cudagraph_mode"),
    ),
    Method(
        _DISPATCHER, "CudagraphDispatcher", "dispatch",
        ("num_tokens", "uniform_decode", "has_lora", "num_active_loras", "valid_modes", "invalid_modes"), Use.OVERRIDE,
        (_RUNNER, "GPUModelRunner", "_determine_batch_execution_and_padding"),
    ),
    Method(_DISPATCHER, "CudagraphDispatcher", "get_capture_descs", (), Use.CALL),
    Attributes(
        _DISPATCHER, "CudagraphDispatcher",
        ("vllm_config", "compilation_config", "cudagraph_keys", "cudagraph_mode", "uniform_decode_query_len"),
    ),
    Attributes(
        "config/compilation.py", "CompilationConfig",
        ("cudagraph_capture_sizes", "max_cudagraph_capture_size", "compile_sizes"),
    ),
    Names("config/__init__.py", ("CUDAGraphMode",)),
    Attributes(_PROPOSER, "SpecDecodeBaseProposer", ("cudagraph_dispatcher",)),
    # graph_record.py: which graphs there are
    Method(
        _CORE, "EngineCore", "_initialize_kv_caches", ("vllm_config",), Use.WRAP, (_CORE, "EngineCore", "__init__")
    ),
    Attributes(_CORE, "EngineCore", ("model_executor",)),
    Method("v1/executor/abstract.py", "Executor", "collective_rpc", ("method",), Use.CALL),
    Attributes("v1/worker/worker_base.py", "WorkerBase", ("model_runner",)),
    Attributes("forward_context.py", "BatchDescriptor", ("num_tokens", "num_reqs", "uniform")),
    # cpu_sampling.py: the repairs of sampling on CPUs
    Method(
        "v1/sample/rejection_sampler.py", None, "expand_batch_to_tokens",
        ("x", "cu_num_tokens", "num_tokens", "replace_from", "replace_to"), Use.OVERRIDE,
        ("v1/sample/rejection_sampler.py", None, "apply_sampling_constraints"),
    ),
    Attributes(_RUNNER, "GPUModelRunner", ("discard_request_mask",)),
    Names("triton_utils/__init__.py", ("HAS_TRITON",)),
    Names("utils/cpu_triton_utils.py"),
    Method("platforms/interface.py", "Platform", "is_cpu", (), Use.CALL),
    # plugin.py and endpoint.py: the control route
    Attributes(_CORE, "EngineCore", ("scheduler",)),
    Method("v1/engine/core_client.py", "AsyncMPClient", "call_utility_async", ("method",), Use.CALL),
    Attributes("v1/engine/async_llm.py", "AsyncLLM", ("engine_core",)),
    Attributes("plugins/endpoint_plugins/interface.py", "EndpointPlugin", ("name", "required_tasks")),
    Method("plugins/endpoint_plugins/interface.py", "EndpointPlugin", "attach_router", ("app",), Use.OVERRIDE),
    Method(
        "plugins/endpoint_plugins/interface.py", "EndpointPlugin", "init_state", ("engine_client", "state", "args"),
        Use.OVERRIDE,
    ),
)  # fmt: skip


def lacking(source: VllmSource, reliance: Iterable[Item] = RELIANCE) -> tuple[str, ...]:
    """Return what `source` lacks of what the adapter relies on, in words; empty when it has all of it."""
    return tuple(words for item in reliance for words in item.lacking(source))
