"""The parts of vLLM's model runner V2 that the adapter relies on, in addition to those of either runner.

Checked like the other list (`engine_adapter.vllm.reliance`), for an engine that runs V2.
"""

from specpilot.engine_adapter.vllm.reliance_items import items

RELIANCE_V2 = items("""
# installation.py: wrapped methods, and the speculator that is made
v1/worker/gpu/model_runner.py GPUModelRunner
    wrap execute_model(scheduler_output) by v1/worker/gpu_worker.py Worker.execute_model
    wrap initialize_kv_cache(kv_cache_config) by v1/worker/gpu_worker.py Worker.initialize_from_config
    wrap prepare_inputs(scheduler_output, batch_req_state, batch_desc, num_active_loras) by execute_model
    wrap gather_batch_req_state(scheduler_output, dummy_run) by execute_model
    lookup gather_batch_req_state: decode_query_len sort_batch_req_ids
    has speculator cudagraph_manager vllm_config device model_config scheduler_config adaptive_verification
v1/worker/gpu/spec_decode/dflash/speculator.py DFlashSpeculator
    meaning propose
v1/worker/gpu/model_runner.py
    meaning sort_batch_req_ids
v1/worker/gpu/model_runner.py BatchReqState
    has req_ids num_tokens decode_graph_eligible

# verified_tokens.py, proposal.py: adaptive verification
v1/worker/gpu/async_utils.py AsyncOutput
    wrap __init__(model_runner_output, sampler_output, num_sampled_tokens, main_stream, copy_stream)
    wrap get_output()
v1/worker/gpu/async_utils.py
    has AsyncOutput async_copy_to_np stream
v1/worker/gpu/sample/output.py SamplerOutput
    has num_rejected
v1/outputs.py ModelRunnerOutput
    has req_ids sampled_token_ids
v1/worker/gpu/spec_decode/speculator.py DraftModelSpeculator
    override _maybe_predict_acceptance(logits, idx_mapping, draft_step) by sample_draft
    has draft_token_confidence_probs acceptance_estimator
v1/worker/gpu/spec_decode/acceptance_estimator.py OnlineAcceptanceEstimator
    call predict(logits, idx_mapping, draft_step, confidence_probs, temperature)
    has predictions
config/speculative.py SpeculativeConfig
    has enable_adaptive_verification
v1/worker/gpu/model_runner.py GPUModelRunner
    lookup initialize_kv_cache: attn_groups cudagraph_manager decode_query_len
    lookup __init__: init_speculator
    lookup sample_tokens: num_spec_tokens_to_schedule
v1/worker/gpu/model_runner.py
    has init_speculator
v1/worker/gpu/spec_decode/__init__.py
    wrap init_speculator(vllm_config, device) by v1/worker/gpu/model_runner.py GPUModelRunner.__init__
v1/worker/gpu/spec_decode/target_dependent_ar/speculator.py TargetDependentARSpeculator
    wrap load_model(target_model) by v1/worker/gpu/model_runner.py GPUModelRunner.load_model
    override propose(input_batch, attn_metadata, slot_mappings, last_hidden_states, aux_hidden_states, num_sampled,
        num_rejected, last_sampled, next_prefill_tokens, temperature, seeds, dp_sync_state, dummy_run,
        skip_attn_for_dummy_run, mm_inputs, is_profile, num_speculative_tokens) by v1/worker/gpu/model_runner.py
        GPUModelRunner.sample_tokens
config/vllm.py VllmConfig
    wrap _get_v2_model_runner_unsupported_features() by _validate_v2_model_runner
envs.py

# step.py, backlog.py: the state after a step, the head's pass over rows
v1/worker/gpu/spec_decode/target_dependent_ar/speculator.py TargetDependentARSpeculator
    call _run_model(num_tokens, attn_metadata, slot_mappings, num_tokens_across_dp, cudagraph_runtime_mode, mm_inputs)
    has hidden_states prefill_cudagraph_manager decode_cudagraph_manager
v1/worker/gpu/spec_decode/speculator.py DraftModelSpeculator
    lookup set_attn: model_state kv_cache_config block_tables attn_groups attn_cg_support target_input_buffers
        target_attn_groups
    has vllm_config device dtype method max_num_tokens input_buffers draft_tokens supports_decode_metadata_update
v1/worker/gpu/input_batch.py InputBatch
    has req_ids num_reqs num_reqs_after_padding idx_mapping idx_mapping_np num_scheduled_tokens num_tokens
        num_tokens_after_padding num_draft_tokens_per_req query_start_loc query_start_loc_np seq_lens
        seq_lens_cpu_upper_bound num_computed_tokens_np prefill_len_np num_computed_prefill_tokens_np is_prefilling_np
        has_prefill decode_graph_eligible prefill_runs_as_decode_np input_ids positions max_query_len fast_prefill
v1/worker/gpu/input_batch.py InputBuffers
    has input_ids positions query_start_loc seq_lens
v1/worker/gpu/block_table.py BlockTables
    call compute_slot_mappings(idx_mapping, query_start_loc, positions, num_tokens_padded, out)
    has block_tables slot_mappings
v1/worker/gpu/attn_utils.py
    call build_attn_metadata(attn_groups, num_reqs, num_tokens, query_start_loc_gpu, query_start_loc_cpu, max_query_len,
        seq_lens, max_seq_len, block_tables, slot_mappings, kv_cache_config, seq_lens_cpu_upper_bound)
    call build_slot_mappings_by_layer(slot_mappings, kv_cache_config)
    has build_attn_metadata build_slot_mappings_by_layer

# what the wrapped methods call: a step's attention, accepted tokens, the head's passes, graphs, connectors
v1/worker/gpu/model_runner.py GPUModelRunner
    meaning prepare_attn postprocess_sampled
v1/worker/gpu/spec_decode/speculator.py DraftModelSpeculator
    meaning __init__ load_model
v1/worker/gpu/spec_decode/target_dependent_ar/speculator.py TargetDependentARSpeculator
    meaning _prefill _generate_draft
v1/worker/gpu/cudagraph_utils.py ModelCudaGraphManager
    meaning capture
v1/worker/gpu/kv_connector.py ActiveKVConnector
    meaning post_forward
v1/worker/gpu/model_states/default.py DefaultModelState
    meaning prepare_attn
v1/worker/gpu/model_states/mamba_hybrid.py MambaHybridModelState
    meaning prepare_attn
v1/attention/backends/mamba_attn.py BaseMambaAttentionMetadataBuilder
    meaning _compute_common_metadata _update_metadata_for_cudagraph_capture build_for_cudagraph_capture
model_executor/layers/mamba/mamba_mixer2.py MambaMixer2
    meaning conv_ssm_forward
v1/worker/gpu/spec_decode/adaptive_verification.py AdaptiveVerificationManager
    meaning compact_batch reallocate_drafts

# subset.py: a part of a step
v1/worker/gpu/block_table.py BlockTables
    call gather_block_tables(idx_mapping, num_reqs_padded)
v1/worker/gpu/model_states/interface.py ModelState
    call prepare_attn(input_batch, cudagraph_mode, block_tables, slot_mappings, attn_groups, kv_cache_config)
v1/worker/utils.py
    call get_uniform_decode_token_count(num_reqs, num_tokens, max_query_len, decode_graph_eligible)
    has get_uniform_decode_token_count
v1/worker/gpu/cudagraph_utils.py CudaGraphManager
    call dispatch(num_reqs, num_tokens, uniform_token_count, num_active_loras, max_query_len)
v1/worker/gpu/cudagraph_utils.py BatchExecutionDescriptor
    has cg_mode num_tokens num_reqs uniform_token_count max_query_len num_active_loras

# graphs.py: graphs for the steps of any K
v1/worker/gpu/cudagraph_utils.py CudaGraphManager
    call __init__(vllm_config, device, cudagraph_mode, decode_query_len, lora_capture_cases, varlen_decode,
        ubatch_runner)
    override _init_candidates() by __init__
    has _candidates _capture_descs lora_capture_cases compilation_config max_num_reqs cudagraph_mode decode_query_len
        varlen_decode ubatch_runner
v1/worker/gpu/cudagraph_utils.py
    has ModelCudaGraphManager
v1/worker/gpu/spec_decode/target_dependent_ar/cudagraph_utils.py SpeculatorBatchDescriptor
    has num_speculative_tokens
v1/worker/gpu/spec_decode/target_dependent_ar/cudagraph_utils.py SpeculatorCudaGraphManager
    call specialize_spec_tokens(desc, num_speculative_tokens) by
        v1/worker/gpu/spec_decode/target_dependent_ar/speculator.py TargetDependentARSpeculator.propose
v1/worker/gpu/attn_utils.py
    call get_varlen_cudagraph_unsupported_backend(attn_groups, vllm_config, max_query_len)
    has get_varlen_cudagraph_unsupported_backend

# parallel_layout.py, parallel_speculator.py: P-EAGLE
v1/worker/gpu/spec_decode/eagle/speculator.py
    has EagleSpeculator
v1/worker/gpu/spec_decode/utils.py
    has get_parallel_drafting_token_id
v1/attention/backend.py
    has AttentionCGSupport
v1/worker/gpu/spec_decode/speculator.py DraftModelSpeculator
    call _copy_request_inputs(num_reqs, idx_mapping, temperature, seeds, dummy_run)
    call _build_attn_metadata(num_reqs, batch_desc, query_start_loc_np, seq_lens_cpu_upper_bound, step)
    call sample_draft(hidden_states, sample_src_positions, idx_mapping, temperature, seeds, draft_step, draft_logits)
    has max_num_reqs max_model_len num_speculative_steps draft_model_config idx_mapping temperature seeds arange_np
        draft_logits supports_mm_inputs
v1/worker/gpu/spec_decode/speculator.py BaseSpeculator
    has num_query_per_req num_extra_query_per_req
v1/worker/gpu/spec_decode/target_dependent_ar/speculator.py TargetDependentARSpeculator
    override init_cudagraph_manager(cudagraph_mode) by v1/worker/gpu/model_runner.py GPUModelRunner.initialize_kv_cache
    override capture() by v1/worker/gpu/model_runner.py GPUModelRunner.capture_model
v1/worker/gpu/spec_decode/target_dependent_ar/cudagraph_utils.py SpeculatorCudaGraphManager
    call capture(forward_fn, model_state, input_buffers, block_tables, attn_groups, kv_cache_config)
v1/worker/gpu/cudagraph_utils.py CudaGraphManager
    call run_fullgraph(desc)
""")
