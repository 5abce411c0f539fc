"""The parts of vLLM's model runner V1 that the adapter relies on, in addition to those of either runner.

Checked like the other list (`engine_adapter.vllm.reliance`), for an engine that runs V1.
"""

from specpilot.engine_adapter.vllm.reliance_items import Attributes, Behaviour, Item, Method, Names, Reads, Record
from specpilot.engine_adapter.vllm.source import Use

_RUNNER = "v1/worker/gpu_model_runner.py"
_PROPOSER = "v1/spec_decode/llm_base_proposer.py"
_DFLASH = "v1/spec_decode/dflash.py"
_DFLASH_HEAD = "model_executor/models/qwen3_dflash.py"
_DISPATCHER = "v1/cudagraph_dispatcher.py"

RELIANCE_V1: tuple[Item, ...] = (
    # installation.py: the time at which the device finished a step
    Method(_RUNNER, "AsyncGPUModelRunnerOutput", "get_output", (), Use.WRAP),
    # sampling.py: a request's logits for thinking budgets
    Reads(
        "v1/sample/thinking_budget_state.py", "ThinkingBudgetStateHolder", "_apply_forcing_to_logits",
        ("in_spec_mode",),
    ),
    # draft_width.py, subset.py: the drafter's width, and its requests
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
    Method(
        _DFLASH_HEAD, "DFlashQwen3ForCausalLM", "precompute_and_store_context_kv",
        ("context_states", "context_positions", "context_slot_mapping"), Use.CALL,
    ),
    Method(_DFLASH_HEAD, "DFlashQwen3ForCausalLM", "combine_hidden_states", ("hidden_states",), Use.CALL),
    # the block of a DFlash head, and where its known positions go
    Reads(_DFLASH, "DFlashProposer", "set_inputs_first_pass", ("num_speculative_tokens",)),
    Reads(_DFLASH, "DFlashProposer", "build_model_inputs_first_pass", ("precompute_and_store_context_kv",)),
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
    Attributes(
        _RUNNER, "ExecuteModelState",
        ("scheduler_output", "spec_decode_common_attn_metadata", "hidden_states", "aux_hidden_states"),
    ),
    Attributes("v1/spec_decode/metadata.py", "SpecDecodeMetadata", ("cu_num_sampled_tokens",)),
    Names("v1/sample/rejection_sampler.py", ("PLACEHOLDER_TOKEN_ID",)),
    Attributes("v1/outputs.py", "SamplerOutput", ("sampled_token_ids",)),
    # graphs.py: CUDA graphs for the query lengths of any K
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
    Attributes(_PROPOSER, "SpecDecodeBaseProposer", ("cudagraph_dispatcher",)),
    # graph_record.py: the list of graphs
    Attributes("forward_context.py", "BatchDescriptor", ("num_tokens", "num_reqs", "uniform")),
    # cpu_sampling.py: the repairs of sampling on CPUs
    Method(
        "v1/sample/rejection_sampler.py", None, "expand_batch_to_tokens",
        ("x", "cu_num_tokens", "num_tokens", "replace_from", "replace_to"), Use.OVERRIDE,
        ("v1/sample/rejection_sampler.py", None, "apply_sampling_constraints"),
    ),
    Attributes(_RUNNER, "GPUModelRunner", ("discard_request_mask",)),
    # what the wrapped methods call: drafts of the last step, drafts to verify, recurrent layers
    Behaviour(_RUNNER, "GPUModelRunner", ("_prepare_input_ids", "_calc_spec_decode_metadata", "_bookkeeping_sync")),
    Behaviour("v1/attention/backends/gdn_attn.py", "GDNAttentionMetadataBuilder", ("build",)),
    Names("utils/cpu_triton_utils.py"),
    Method("platforms/interface.py", "Platform", "is_cpu", (), Use.CALL),
)  # fmt: skip
