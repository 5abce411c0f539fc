"""P-EAGLE on model runner V2, which vLLM does not have: an EAGLE head that drafts all positions in one pass.

vLLM's V2 runs EAGLE heads one draft token at a time and rejects `parallel_drafting` for them. The adapter replaces that
speculator by this one. It prepares the step's rows like vLLM's model runner V1 (`parallel_layout`), at the step's
width, and runs the head once. Loading, KV cache and sampling are vLLM's.

*CUDA graphs.* The head's pass and the sampling are one FULL graph if the head's attention supports requests of any
length (`AttentionCGSupport.ALWAYS`: FlashAttention 3, Triton): for any mix of lengths and widths, by rows. Otherwise
there are graphs only for the uniform step at K_max, with 2 K_max rows for each request. A graph samples K_max tokens
for each request at any width; tokens beyond the width are dropped. Other steps run without a graph.
"""

from inspect import signature
from typing import Any

import torch
from vllm.config import CUDAGraphMode
from vllm.v1.attention.backend import AttentionCGSupport
from vllm.v1.worker.gpu.attn_utils import build_slot_mappings_by_layer
from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor
from vllm.v1.worker.gpu.spec_decode.eagle.speculator import EagleSpeculator
from vllm.v1.worker.gpu.spec_decode.target_dependent_ar.cudagraph_utils import SpeculatorCudaGraphManager
from vllm.v1.worker.gpu.spec_decode.utils import get_parallel_drafting_token_id

from specpilot.engine_adapter.vllm.v2.attention import Pass
from specpilot.engine_adapter.vllm.v2.graphs import are_known
from specpilot.engine_adapter.vllm.v2.parallel_layout import Layout, lay_out
from specpilot.engine_adapter.vllm.v2.proposal import planned
from specpilot.engine_adapter.vllm.v2.steered import of_speculator
from specpilot.engine_adapter.vllm.v2.step import Step

_PADDING = -1
"""vLLM's slot of a row that writes no KV cache."""


class ParallelEagleSpeculator(EagleSpeculator):
    """An EAGLE head that drafts in parallel."""

    lays_out_itself = True
    """Unlike vLLM's first pass of an EAGLE head, it does not read the target's attention metadata."""

    def __init__(self, vllm_config: Any, device: torch.device) -> None:
        super().__init__(vllm_config, device)
        k_max = self.num_speculative_steps
        self.num_query_per_req = k_max
        self.num_extra_query_per_req = k_max - 1
        self._mask_token = get_parallel_drafting_token_id(self.draft_model_config.hf_config)
        self._layout = Layout.of_size(self.max_num_tokens, self.max_num_reqs, k_max, device)
        # The states of a step's positions, then that of the mask.
        self._read = torch.zeros(self.max_num_tokens + 1, self.hidden_size, dtype=self.dtype, device=device)
        self._unread_confidences = torch.empty_like(self.draft_token_confidence_probs)
        self._steps = torch.arange(k_max, dtype=torch.int32, device=device).repeat(self.max_num_reqs, 1)

    def load_model(self, target_model: Any) -> None:
        """Load the head, and compute the hidden state of its masks."""
        super().load_model(target_model)
        self.supports_mm_inputs = False
        mask = self.model.mask_hidden.view(-1)
        combine = self.model.combine_hidden_states if self.method == "eagle3" else lambda states: states
        self._read[-1].copy_(combine(mask))

    def init_cudagraph_manager(self, cudagraph_mode: CUDAGraphMode) -> None:
        """Set up the graphs to capture later."""
        support = self.attn_cg_support.min_cg_support
        is_full = cudagraph_mode.decode_mode() == CUDAGraphMode.FULL
        is_full &= support.value >= AttentionCGSupport.UNIFORM_BATCH.value
        self.prefill_cudagraph_manager = SpeculatorCudaGraphManager(
            self.vllm_config,
            self.device,
            CUDAGraphMode.FULL_DECODE_ONLY if is_full else CUDAGraphMode.NONE,
            2 * self.num_speculative_steps,
            varlen_decode=support == AttentionCGSupport.ALWAYS and are_known(self.attn_groups),
        )
        self.decode_cudagraph_manager = None

    def capture(self) -> None:
        """Capture the graphs."""
        self._layout.samples.zero_()
        self._layout.sample_slots.fill_(-1)
        assert self.prefill_cudagraph_manager is not None
        self.prefill_cudagraph_manager.capture(
            self._draft,
            self.model_state,
            self.input_buffers,
            self.block_tables,
            self.attn_groups,
            self.kv_cache_config,
            progress_bar_desc="Capturing P-EAGLE CUDA graphs",
        )

    def propose(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return draft tokens [requests, K_max]; -1 if nothing is drafted."""
        steered, arguments = of_speculator(self), dict(zip(_PROPOSE, args, strict=False)) | kwargs
        return planned(self, steered, type(self)._propose, arguments) if steered else self._propose(**arguments)

    @torch.inference_mode()
    def _propose(self, **arguments: Any) -> torch.Tensor:
        batch, is_dummy = arguments["input_batch"], arguments.get("dummy_run", False)
        count, width = batch.num_reqs, arguments.get("num_speculative_tokens")
        width = self.num_speculative_steps if width is None else width
        drafts: torch.Tensor = self.draft_tokens[:count]
        if width == 0:  # another scheduler's step: vLLM completes the head's KV cache there; this speculator does not
            return drafts.fill_(-1)
        temperature, seeds = arguments["temperature"], arguments["seeds"]
        self._copy_request_inputs(count, batch.idx_mapping, temperature, seeds, dummy_run=is_dummy)
        step = Step.of(arguments)
        states = torch.cat([*step.states], dim=-1) if len(step.states) > 1 else step.states[0]
        combined = self.model.combine_hidden_states(states) if self.method == "eagle3" else states
        self._read[: len(combined)].copy_(combined)
        lay_out(
            self._layout, self.input_buffers, batch, step.following, step.rejected, width, self._mask_token,
            self.max_num_tokens, self.max_model_len,
        )  # fmt: skip
        starts = batch.query_start_loc_np[: count + 1] + self.arange_np[: count + 1] * (width - 1)
        rows = int(starts[-1])
        torch.index_select(self._read, 0, self._layout.sources[:rows], out=self.hidden_states[:rows])
        longest = int(batch.num_scheduled_tokens.max()) + width - 1
        graph = self._graph(arguments, rows, longest)
        metadata = by_layer = None
        if not arguments.get("skip_attn_for_dummy_run", False):
            laid_out = self._pass(batch, starts, width, graph, graph.max_query_len or longest)
            metadata = laid_out.metadata(self)
            by_layer = build_slot_mappings_by_layer(laid_out.slots, self.kv_cache_config)
        if graph.cg_mode == CUDAGraphMode.FULL:
            assert self.prefill_cudagraph_manager is not None
            self.prefill_cudagraph_manager.run_fullgraph(graph)
        else:
            self._draft(count, graph.num_tokens, metadata, by_layer, None, width=width)
        return drafts

    def _pass(self, batch: Any, starts: Any, width: int, graph: BatchExecutionDescriptor, longest: int) -> Pass:
        """Return the pass over the prepared rows, which begin at `starts`, padded to its `graph`."""
        count, rows, padded = batch.num_reqs, int(starts[-1]), graph.num_reqs or batch.num_reqs
        buffers = self.input_buffers
        slots = self.block_tables.compute_slot_mappings(
            self.idx_mapping[:count], buffers.query_start_loc[: count + 1], buffers.positions[:rows], graph.num_tokens
        )
        slots[:, :rows].masked_fill_(self._layout.is_unused[:rows], _PADDING)
        starts_cpu = torch.full((padded + 1,), rows, dtype=torch.int32)
        starts_cpu[: count + 1] = torch.from_numpy(starts)
        bound_cpu = torch.zeros(padded, dtype=torch.int32)
        bound_cpu[:count] = (batch.seq_lens_cpu_upper_bound[:count] + width - 1).clamp(max=self.max_model_len)
        return Pass(
            buffers.query_start_loc[: padded + 1],
            starts_cpu,
            buffers.seq_lens[:padded],
            bound_cpu,
            [table[:padded] for table in self.block_tables.input_block_tables],
            slots,
            buffers.positions[: graph.num_tokens],
            longest,
        )

    def _graph(self, arguments: dict[str, Any], rows: int, longest: int) -> BatchExecutionDescriptor:
        """Return the descriptor of the graph for so many rows; `longest`: the largest number of rows of a request."""
        count, manager = arguments["input_batch"].num_reqs, self.prefill_cudagraph_manager
        if manager is None or arguments.get("is_profile", False):
            return BatchExecutionDescriptor(CUDAGraphMode.NONE, rows, count)
        uniform = longest if rows == count * longest else None
        return manager.dispatch(count, rows, uniform, num_active_loras=0, max_query_len=longest)

    def _maybe_predict_acceptance(
        self, logits: torch.Tensor, idx_mapping: torch.Tensor, draft_step: torch.Tensor
    ) -> None:
        """Estimate the acceptance of each draft token, if adaptive verification needs it.

        vLLM's kernel assumes K_max rows for each request. So the estimates by batch are read from those by request
        slot, which the kernel writes too.
        """
        estimator = self.acceptance_estimator
        if estimator is not None:
            unread = self._unread_confidences
            estimator.predict(logits, idx_mapping, draft_step, unread, self.temperature)
            self.draft_token_confidence_probs.copy_(estimator.predictions[self.idx_mapping])

    def _draft(  # noqa: PLR0913, PLR0917 - the arguments of vLLM's capture
        self,
        num_reqs: int,
        num_tokens: int,
        attn_metadata: dict[str, Any] | None,
        slot_mappings: dict[str, torch.Tensor] | None,
        num_tokens_across_dp: torch.Tensor | None,
        cudagraph_runtime_mode: CUDAGraphMode = CUDAGraphMode.NONE,
        width: int | None = None,
    ) -> None:
        """Run the head over the prepared rows, and sample `width` tokens for each request; `None`: K_max."""
        width = width or self.num_speculative_steps
        hidden, _ = self._run_model(
            num_tokens, attn_metadata, slot_mappings, num_tokens_across_dp, cudagraph_runtime_mode
        )
        layout = self._layout
        samples, positions, slots, steps = (
            item[:num_reqs, :width].reshape(-1)
            for item in (layout.samples, layout.sample_positions, layout.sample_slots, self._steps)
        )
        tokens = self.sample_draft(
            hidden[samples], positions, slots, self.temperature, self.seeds, steps, self.draft_logits
        )
        self.draft_tokens[:num_reqs, :width] = tokens.view(num_reqs, width)


_PROPOSE = (*signature(EagleSpeculator.propose).parameters,)[1:]
