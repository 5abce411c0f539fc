"""The parts of vLLM's model runner V1 that the adapter relies on, in addition to those of either runner.

Checked like the other list (`engine_adapter.vllm.reliance`), for an engine that runs V1.
"""

from specpilot.engine_adapter.vllm.reliance_items import items

RELIANCE_V1 = items("""
# installation.py: the time at which the device finished a step
v1/worker/gpu_model_runner.py AsyncGPUModelRunnerOutput
    wrap get_output()

# sampling.py: a request's logits for thinking budgets
v1/sample/thinking_budget_state.py ThinkingBudgetStateHolder
    lookup _apply_forcing_to_logits: in_spec_mode

# draft_width.py, subset.py: the drafter's width, and its requests
v1/spec_decode/utils.py
v1/spec_decode/llm_base_proposer.py SpecDecodeBaseProposer
    wrap __init__(vllm_config, device) by v1/spec_decode/eagle.py EagleProposer.__init__
    wrap propose(num_speculative_tokens, target_token_ids, target_positions, target_hidden_states, next_token_ids,
        token_indices_to_sample, common_attn_metadata, sampling_metadata, mm_embed_inputs, num_rejected_tokens_gpu) by
        v1/worker/gpu_model_runner.py GPUModelRunner.propose_draft_token_ids
    lookup set_inputs_first_pass: extra_slots_per_request net_num_new_slots_per_request
    has parallel_drafting pass_hidden_states_to_model _last_draft_probs
v1/sample/metadata.py SamplingMetadata
    has temperature
v1/worker/gpu_model_runner.py GPUModelRunner
    lookup propose_draft_token_ids: num_spec_tokens_to_schedule

# backlog.py: the drafter catches up
v1/spec_decode/llm_base_proposer.py SpecDecodeBaseProposer
    wrap load_model(target_model) by v1/worker/gpu_model_runner.py GPUModelRunner.load_model
    lookup propose: model
    call _set_positions(num_tokens, positions)
    call build_per_group_and_layer_attn_metadata(common_attn_metadata)
    call _determine_batch_execution_and_padding(num_tokens)
    call build_model_inputs_first_pass(num_tokens, num_input_tokens, mm_embed_inputs)
    call _get_slot_mapping(num_tokens, slot_mapping)
    has method device dtype hidden_size max_num_tokens vllm_config input_ids hidden_states block_size
        num_speculative_tokens parallel_drafting_token_id
forward_context.py
    has set_forward_context
v1/worker/gpu_model_runner.py GPUModelRunner
    call _get_positions(num_tokens)
    has input_batch input_ids num_prompt_logprobs
v1/worker/gpu_input_batch.py InputBatch
    has req_ids thinking_budget_state_holder
v1/attention/backend.py CommonAttentionMetadata
    fields query_start_loc query_start_loc_cpu seq_lens seq_lens_cpu_upper_bound num_reqs num_actual_tokens
        max_query_len max_seq_len block_table_tensor slot_mapping causal
model_executor/models/qwen3_dflash.py DFlashQwen3ForCausalLM
    call precompute_and_store_context_kv(context_states, context_positions, context_slot_mapping)
    call combine_hidden_states(hidden_states)

# the block of a DFlash head, and where its known positions go
v1/spec_decode/dflash.py DFlashProposer
    lookup set_inputs_first_pass: num_speculative_tokens
    lookup build_model_inputs_first_pass: precompute_and_store_context_kv

# installation.py, undrafted.py: steps without drafts
v1/worker/gpu_model_runner.py GPUModelRunner
    wrap execute_model(scheduler_output)
    override _prepare_inputs(scheduler_output, num_scheduled_tokens) by execute_model
    lookup execute_model: speculative_config
    lookup sample_tokens: speculative_config
    lookup _build_attention_metadata: speculative_config
    override _sample(logits, spec_decode_metadata) by sample_tokens
    override sample_tokens(grammar_output)
    override _input_fits_in_drafter(common_attn_metadata) by sample_tokens
    has execute_model_state speculative_config model_config
v1/worker/gpu_model_runner.py ExecuteModelState
    has scheduler_output spec_decode_common_attn_metadata hidden_states aux_hidden_states
v1/spec_decode/metadata.py SpecDecodeMetadata
    has cu_num_sampled_tokens
v1/sample/rejection_sampler.py
    has PLACEHOLDER_TOKEN_ID
v1/outputs.py SamplerOutput
    has sampled_token_ids

# graphs.py: CUDA graphs for the query lengths of any K
v1/worker/gpu_model_runner.py GPUModelRunner
    wrap _check_and_update_cudagraph_mode(attention_backends, kv_cache_groups) by initialize_attn_backend
    wrap _warmup_and_capture(desc, cudagraph_runtime_mode) by _capture_cudagraphs
    wrap _determine_batch_execution_and_padding(num_tokens, num_reqs, num_scheduled_tokens_np, max_num_scheduled_tokens)
        by execute_model
    wrap capture_model()
    wrap profile_cudagraph_memory()
    lookup _determine_batch_execution_and_padding: uniform_decode_query_len cudagraph_dispatcher
    lookup _dummy_run: uniform_decode_query_len
    lookup _check_and_update_cudagraph_mode: cudagraph_dispatcher
v1/attention/backend.py AttentionCGSupport
    has ALWAYS
v1/cudagraph_dispatcher.py CudagraphDispatcher
    override initialize_cudagraph_keys(cudagraph_mode, uniform_decode_query_len) by v1/worker/gpu_model_runner.py
        GPUModelRunner._check_and_update_cudagraph_mode
    override dispatch(num_tokens, uniform_decode, has_lora, num_active_loras, valid_modes, invalid_modes) by
        v1/worker/gpu_model_runner.py GPUModelRunner._determine_batch_execution_and_padding
    call get_capture_descs()
    has vllm_config compilation_config cudagraph_keys cudagraph_mode uniform_decode_query_len
v1/spec_decode/llm_base_proposer.py SpecDecodeBaseProposer
    has cudagraph_dispatcher

# graph_record.py: the list of graphs
forward_context.py BatchDescriptor
    has num_tokens num_reqs uniform

# cpu_sampling.py: the repairs of sampling on CPUs
v1/sample/rejection_sampler.py
    override expand_batch_to_tokens(x, cu_num_tokens, num_tokens, replace_from, replace_to) by
        apply_sampling_constraints
v1/worker/gpu_model_runner.py GPUModelRunner
    has discard_request_mask

# what the wrapped methods call: drafts of the last step, drafts to verify, recurrent layers
v1/worker/gpu_model_runner.py GPUModelRunner
    meaning _prepare_input_ids _calc_spec_decode_metadata _bookkeeping_sync
v1/attention/backends/gdn_attn.py GDNAttentionMetadataBuilder
    meaning build
utils/cpu_triton_utils.py
platforms/interface.py Platform
    call is_cpu()
""")
