"""The parts of vLLM's model runner V2 that the adapter relies on, in addition to those of either runner.

Checked like the other list (`engine_adapter.vllm.reliance`), for an engine that runs V2.
"""

from specpilot.engine_adapter.vllm.reliance_items import Attributes, Behaviour, Item, Method, Names, Reads
from specpilot.engine_adapter.vllm.source import Use

_RUNNER = "v1/worker/gpu/model_runner.py"
_SPECULATOR = "v1/worker/gpu/spec_decode/speculator.py"
_SEQUENTIAL = "v1/worker/gpu/spec_decode/target_dependent_ar/speculator.py"
_SEQUENTIAL_GRAPHS = "v1/worker/gpu/spec_decode/target_dependent_ar/cudagraph_utils.py"
_GRAPHS = "v1/worker/gpu/cudagraph_utils.py"
_ATTENTION = "v1/worker/gpu/attn_utils.py"
_INPUT = "v1/worker/gpu/input_batch.py"
_TABLES = "v1/worker/gpu/block_table.py"

RELIANCE_V2: tuple[Item, ...] = (
    # installation.py: wrapped methods, and the speculator that is made
    Method(
        _RUNNER, "GPUModelRunner", "execute_model", ("scheduler_output",), Use.WRAP,
        ("v1/worker/gpu_worker.py", "Worker", "execute_model"),
    ),
    Method(
        _RUNNER, "GPUModelRunner", "initialize_kv_cache", ("kv_cache_config",), Use.WRAP,
        ("v1/worker/gpu_worker.py", "Worker", "initialize_from_config"),
    ),
    Method(
        _RUNNER, "GPUModelRunner", "prepare_inputs",
        ("scheduler_output", "batch_req_state", "batch_desc", "num_active_loras"), Use.WRAP,
        (_RUNNER, "GPUModelRunner", "execute_model"),
    ),
    Method(
        _RUNNER, "GPUModelRunner", "gather_batch_req_state", ("scheduler_output", "dummy_run"), Use.WRAP,
        (_RUNNER, "GPUModelRunner", "execute_model"),
    ),
    Attributes(
        _RUNNER, "GPUModelRunner",
        (
            "speculator", "cudagraph_manager", "vllm_config", "device", "model_config", "scheduler_config",
            "adaptive_verification",
        ),
    ),
    Reads(_RUNNER, "GPUModelRunner", "gather_batch_req_state", ("decode_query_len", "sort_batch_req_ids")),
    Behaviour("v1/worker/gpu/spec_decode/dflash/speculator.py", "DFlashSpeculator", ("propose",)),
    Behaviour(_RUNNER, None, ("sort_batch_req_ids",)),
    Attributes(_RUNNER, "BatchReqState", ("req_ids", "num_tokens", "decode_graph_eligible")),
    # verified_tokens.py, proposal.py: adaptive verification
    Method(
        "v1/worker/gpu/async_utils.py", "AsyncOutput", "__init__",
        ("model_runner_output", "sampler_output", "num_sampled_tokens", "main_stream", "copy_stream"), Use.WRAP,
    ),
    Method("v1/worker/gpu/async_utils.py", "AsyncOutput", "get_output", (), Use.WRAP),
    Names("v1/worker/gpu/async_utils.py", ("AsyncOutput", "async_copy_to_np", "stream")),
    Attributes("v1/worker/gpu/sample/output.py", "SamplerOutput", ("num_rejected",)),
    Attributes("v1/outputs.py", "ModelRunnerOutput", ("req_ids", "sampled_token_ids")),
    Attributes(_SPECULATOR, "DraftModelSpeculator", ("draft_token_confidence_probs", "acceptance_estimator")),
    Method(
        _SPECULATOR, "DraftModelSpeculator", "_maybe_predict_acceptance", ("logits", "idx_mapping", "draft_step"),
        Use.OVERRIDE, (_SPECULATOR, "DraftModelSpeculator", "sample_draft"),
    ),
    Method(
        "v1/worker/gpu/spec_decode/acceptance_estimator.py", "OnlineAcceptanceEstimator", "predict",
        ("logits", "idx_mapping", "draft_step", "confidence_probs", "temperature"), Use.CALL,
    ),
    Attributes(
        "v1/worker/gpu/spec_decode/acceptance_estimator.py", "OnlineAcceptanceEstimator", ("predictions",)
    ),
    Attributes("config/speculative.py", "SpeculativeConfig", ("enable_adaptive_verification",)),
    Reads(_RUNNER, "GPUModelRunner", "initialize_kv_cache", ("attn_groups", "cudagraph_manager", "decode_query_len")),
    Reads(_RUNNER, "GPUModelRunner", "__init__", ("init_speculator",)),
    Names(_RUNNER, ("init_speculator",)),
    Method(
        "v1/worker/gpu/spec_decode/__init__.py", None, "init_speculator", ("vllm_config", "device"), Use.WRAP,
        (_RUNNER, "GPUModelRunner", "__init__"),
    ),
    Method(
        _SEQUENTIAL, "TargetDependentARSpeculator", "load_model", ("target_model",), Use.WRAP,
        (_RUNNER, "GPUModelRunner", "load_model"),
    ),
    Method(
        _SEQUENTIAL, "TargetDependentARSpeculator", "propose",
        (
            "input_batch", "attn_metadata", "slot_mappings", "last_hidden_states", "aux_hidden_states", "num_sampled",
            "num_rejected", "last_sampled", "next_prefill_tokens", "temperature", "seeds", "dp_sync_state", "dummy_run",
            "skip_attn_for_dummy_run", "mm_inputs", "is_profile", "num_speculative_tokens",
        ),
        Use.OVERRIDE, (_RUNNER, "GPUModelRunner", "sample_tokens"),
    ),
    Reads(_RUNNER, "GPUModelRunner", "sample_tokens", ("num_spec_tokens_to_schedule",)),
    Method(
        "config/vllm.py", "VllmConfig", "_get_v2_model_runner_unsupported_features", (), Use.WRAP,
        ("config/vllm.py", "VllmConfig", "_validate_v2_model_runner"),
    ),
    Names("envs.py"),
    # step.py, backlog.py: the state after a step, the head's pass over rows
    Method(
        _SEQUENTIAL, "TargetDependentARSpeculator", "_run_model",
        (
            "num_tokens", "attn_metadata", "slot_mappings", "num_tokens_across_dp", "cudagraph_runtime_mode",
            "mm_inputs",
        ),
        Use.CALL,
    ),
    Attributes(
        _SEQUENTIAL, "TargetDependentARSpeculator",
        ("hidden_states", "prefill_cudagraph_manager", "decode_cudagraph_manager"),
    ),
    Attributes(
        _SPECULATOR, "DraftModelSpeculator",
        (
            "vllm_config", "device", "dtype", "method", "max_num_tokens", "input_buffers", "draft_tokens",
            "supports_decode_metadata_update",
        ),
    ),
    Reads(
        _SPECULATOR, "DraftModelSpeculator", "set_attn",
        (
            "model_state", "kv_cache_config", "block_tables", "attn_groups", "attn_cg_support",
            "target_input_buffers", "target_attn_groups",
        ),
    ),
    Attributes(
        _INPUT, "InputBatch",
        (
            "req_ids", "num_reqs", "num_reqs_after_padding", "idx_mapping", "idx_mapping_np", "num_scheduled_tokens",
            "num_tokens", "num_tokens_after_padding", "num_draft_tokens_per_req", "query_start_loc",
            "query_start_loc_np", "seq_lens", "seq_lens_cpu_upper_bound", "num_computed_tokens_np", "prefill_len_np",
            "num_computed_prefill_tokens_np", "is_prefilling_np", "has_prefill", "decode_graph_eligible",
            "prefill_runs_as_decode_np", "input_ids", "positions", "max_query_len", "fast_prefill",
        ),
    ),
    Attributes(_INPUT, "InputBuffers", ("input_ids", "positions", "query_start_loc", "seq_lens")),
    Attributes(_TABLES, "BlockTables", ("block_tables", "slot_mappings")),
    Method(
        _TABLES, "BlockTables", "compute_slot_mappings",
        ("idx_mapping", "query_start_loc", "positions", "num_tokens_padded", "out"), Use.CALL,
    ),
    Method(
        _ATTENTION, None, "build_attn_metadata",
        (
            "attn_groups", "num_reqs", "num_tokens", "query_start_loc_gpu", "query_start_loc_cpu", "max_query_len",
            "seq_lens", "max_seq_len", "block_tables", "slot_mappings", "kv_cache_config", "seq_lens_cpu_upper_bound",
        ),
        Use.CALL,
    ),
    Method(_ATTENTION, None, "build_slot_mappings_by_layer", ("slot_mappings", "kv_cache_config"), Use.CALL),
    Names(_ATTENTION, ("build_attn_metadata", "build_slot_mappings_by_layer")),
    # what the wrapped methods call: a step's attention, accepted tokens, the head's passes, graphs, connectors
    Behaviour(_RUNNER, "GPUModelRunner", ("prepare_attn", "postprocess_sampled")),
    Behaviour(_SPECULATOR, "DraftModelSpeculator", ("__init__", "load_model")),
    Behaviour(_SEQUENTIAL, "TargetDependentARSpeculator", ("_prefill", "_generate_draft")),
    Behaviour(_GRAPHS, "ModelCudaGraphManager", ("capture",)),
    Behaviour("v1/worker/gpu/kv_connector.py", "ActiveKVConnector", ("post_forward",)),
    Behaviour("v1/worker/gpu/model_states/default.py", "DefaultModelState", ("prepare_attn",)),
    Behaviour("v1/worker/gpu/model_states/mamba_hybrid.py", "MambaHybridModelState", ("prepare_attn",)),
    Behaviour(
        "v1/attention/backends/mamba_attn.py", "BaseMambaAttentionMetadataBuilder",
        ("_compute_common_metadata", "_update_metadata_for_cudagraph_capture", "build_for_cudagraph_capture"),
    ),
    Behaviour("model_executor/layers/mamba/mamba_mixer2.py", "MambaMixer2", ("conv_ssm_forward",)),
    Behaviour(
        "v1/worker/gpu/spec_decode/adaptive_verification.py", "AdaptiveVerificationManager",
        ("compact_batch", "reallocate_drafts"),
    ),
    # subset.py: a part of a step
    Method(_TABLES, "BlockTables", "gather_block_tables", ("idx_mapping", "num_reqs_padded"), Use.CALL),
    Method(
        "v1/worker/gpu/model_states/interface.py", "ModelState", "prepare_attn",
        ("input_batch", "cudagraph_mode", "block_tables", "slot_mappings", "attn_groups", "kv_cache_config"), Use.CALL,
    ),
    Method(
        "v1/worker/utils.py", None, "get_uniform_decode_token_count",
        ("num_reqs", "num_tokens", "max_query_len", "decode_graph_eligible"), Use.CALL,
    ),
    Names("v1/worker/utils.py", ("get_uniform_decode_token_count",)),
    Method(
        _GRAPHS, "CudaGraphManager", "dispatch",
        ("num_reqs", "num_tokens", "uniform_token_count", "num_active_loras", "max_query_len"), Use.CALL,
    ),
    Attributes(
        _GRAPHS, "BatchExecutionDescriptor",
        ("cg_mode", "num_tokens", "num_reqs", "uniform_token_count", "max_query_len", "num_active_loras"),
    ),
    # graphs.py: graphs for the steps of any K
    Method(
        _GRAPHS, "CudaGraphManager", "__init__",
        (
            "vllm_config", "device", "cudagraph_mode", "decode_query_len", "lora_capture_cases", "varlen_decode",
            "ubatch_runner",
        ),
        Use.CALL,
    ),
    Method(
        _GRAPHS, "CudaGraphManager", "_init_candidates", (), Use.OVERRIDE, (_GRAPHS, "CudaGraphManager", "__init__")
    ),
    Attributes(
        _GRAPHS, "CudaGraphManager",
        (
            "_candidates", "_capture_descs", "lora_capture_cases", "compilation_config", "max_num_reqs",
            "cudagraph_mode", "decode_query_len", "varlen_decode", "ubatch_runner",
        ),
    ),
    Names(_GRAPHS, ("ModelCudaGraphManager",)),
    Attributes(_SEQUENTIAL_GRAPHS, "SpeculatorBatchDescriptor", ("num_speculative_tokens",)),
    Method(
        _SEQUENTIAL_GRAPHS, "SpeculatorCudaGraphManager", "specialize_spec_tokens", ("desc", "num_speculative_tokens"),
        Use.CALL, (_SEQUENTIAL, "TargetDependentARSpeculator", "propose"),
    ),
    Method(
        _ATTENTION, None, "get_varlen_cudagraph_unsupported_backend", ("attn_groups", "vllm_config", "max_query_len"),
        Use.CALL,
    ),
    Names(_ATTENTION, ("get_varlen_cudagraph_unsupported_backend",)),
    # parallel_layout.py, parallel_speculator.py: P-EAGLE
    Names("v1/worker/gpu/spec_decode/eagle/speculator.py", ("EagleSpeculator",)),
    Names("v1/worker/gpu/spec_decode/utils.py", ("get_parallel_drafting_token_id",)),
    Names("v1/attention/backend.py", ("AttentionCGSupport",)),
    Attributes(
        _SPECULATOR, "DraftModelSpeculator",
        (
            "max_num_reqs", "max_model_len", "num_speculative_steps", "draft_model_config", "idx_mapping",
            "temperature", "seeds", "arange_np", "draft_logits", "supports_mm_inputs",
        ),
    ),
    Attributes(_SPECULATOR, "BaseSpeculator", ("num_query_per_req", "num_extra_query_per_req")),
    Method(
        _SPECULATOR, "DraftModelSpeculator", "_copy_request_inputs",
        ("num_reqs", "idx_mapping", "temperature", "seeds", "dummy_run"), Use.CALL,
    ),
    Method(
        _SPECULATOR, "DraftModelSpeculator", "_build_attn_metadata",
        ("num_reqs", "batch_desc", "query_start_loc_np", "seq_lens_cpu_upper_bound", "step"), Use.CALL,
    ),
    Method(
        _SPECULATOR, "DraftModelSpeculator", "sample_draft",
        (
            "hidden_states", "sample_src_positions", "idx_mapping", "temperature", "seeds", "draft_step",
            "draft_logits",
        ),
        Use.CALL,
    ),
    Method(
        _SEQUENTIAL, "TargetDependentARSpeculator", "init_cudagraph_manager", ("cudagraph_mode",), Use.OVERRIDE,
        (_RUNNER, "GPUModelRunner", "initialize_kv_cache"),
    ),
    Method(
        _SEQUENTIAL, "TargetDependentARSpeculator", "capture", (), Use.OVERRIDE,
        (_RUNNER, "GPUModelRunner", "capture_model"),
    ),
    Method(
        _SEQUENTIAL_GRAPHS, "SpeculatorCudaGraphManager", "capture",
        ("forward_fn", "model_state", "input_buffers", "block_tables", "attn_groups", "kv_cache_config"), Use.CALL,
    ),
    Method(_GRAPHS, "CudaGraphManager", "run_fullgraph", ("desc",), Use.CALL),
)  # fmt: skip
