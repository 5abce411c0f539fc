"""The positions that the drafter has not read, and its catching up, on model runner V1.

A request that the drafter leaves out decodes tokens that are missing from the draft KV cache. Its drafts would be
accepted less for a while. The gap can be closed at any time: an EAGLE-type drafter needs the target's hidden states at
a position, and the token that follows. So each step adds one row for each such request. Before its next draft, its rows
go through the drafter in one forward pass, like a prompt: without draft slots or sampling. The scheduler's plan decides
which requests catch up and which a step leaves out (`engine_adapter.plan.catch_up`).

*Several positions* of a request in a step that drafts nothing (a prompt, verified drafts) go through such a pass at
once, except the last one. The token that follows it is known only in the next step, so it becomes a row. All positions
of a deferred prompt (`StepPlan.deferred`) become rows. Positions past the drafter's length limit are dropped, because
nothing is ever drafted from them.

*Memory.* Rows take a bounded amount (`engine_facts.backlog_rows`). For EAGLE-3 a row has the hidden states of three
layers, 24 KiB for a hidden size of 4,096 in bfloat16. The output of the head's first layer would take a third of that,
but most rows are never read, and this output is computed only for rows that are read. The memory is allocated with the
drafter's weights, before vLLM measures the rest for the KV cache. The planner makes requests catch up before the bound
is reached. Memory of dropped rows is used again when no row waits or no room is left. An eighth is allocated beyond the
bound, so that rows seldom have to move.

*Invariants.* A row never reaches another request's cache: rows of a request that ended, was resumed after a preemption,
or started over are dropped before that step runs (`vllm.v1.undrafted`), because its slots may belong to another
request. Nothing waits for the accelerator: rows are copied and gathered in stream order, and the host has the request
of each row.

A running request without a token in the step that makes room loses its rows. These positions stay missing: its
drafts are lossless, and accepted less for a while.
"""

from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import Any

import torch
from vllm.forward_context import set_forward_context
from vllm.v1.attention.backend import CommonAttentionMetadata

from specpilot.engine_adapter.plan.missing_rows import Span, passes, spans_of, within
from specpilot.engine_adapter.vllm.engine_facts import (
    backlog_rows,
    drafter_length,
    largest_graph,
    row_size,
    states_stay,
)
from specpilot.engine_adapter.vllm.rows import POSITIONS_PER_PASS, SPARE_ROWS, Rows, handed_over, indices


class Backlog:
    """The backlog of one drafter. After each step: `catch_up` before the drafter runs, then `keep` for the rest.

    `rows` are the waiting rows.
    """

    def __init__(self, drafter: Any) -> None:
        config = drafter.vllm_config
        rows = backlog_rows(config)
        size = max(
            rows + rows // SPARE_ROWS, config.scheduler_config.max_num_seqs
        )  # for steps in which vLLM cannot draft, one row for each request
        self._drafter = drafter
        self._length = drafter_length(config)
        self._states_stay = states_stay(config, drafter.device.type)
        self.rows = Rows(size, row_size(config), drafter.dtype, drafter.device, can_hold=self._states_stay)
        self._inputs: torch.Tensor | None = None  # the runner's input tokens, up to the number in the latest plain step

    def beyond_passes(self, state: Any, *, has_prompt_logprobs: bool) -> Any:
        """Return the runner's `state` with copies of the states that are read after a pass of the drafter.

        These are the target's states for the drafter, and the last layer's states if the log-probabilities of a
        prompt's tokens are requested.

        CUDA graphs share one pool of memory, so a replay of the drafter's graph may overwrite the target's outputs.
        vLLM reads these before its drafter runs. Here passes of the drafter come earlier, so a step with such passes
        copies them. A step larger than the largest graph has its outputs outside the pool and needs no copy.
        """
        count = state.scheduler_output.total_num_scheduled_tokens
        if self._states_stay or count > largest_graph(self._drafter.vllm_config):
            return state
        if state.aux_hidden_states:
            state = state._replace(aux_hidden_states=[layer[:count].clone() for layer in state.aux_hidden_states])
            if not has_prompt_logprobs:
                return state
        return state._replace(hidden_states=state.hidden_states[:count].clone())

    def keep_plain(self, runner: Any, state: Any) -> None:
        """Keep the row of each request of a plain step: one position each, without prepared input for a drafter."""
        requests, states = runner.input_batch.req_ids, _read(state)
        count = len(requests)
        if states[0].size(0) > count:  # padded
            states = [layer[:count] for layer in states]
        if self._inputs is None or self._inputs.size(0) != count:
            self._inputs = runner.input_ids.gpu[:count]
        self.rows.add(requests, states, self._inputs, requests)

    def keep(self, runner: Any, state: Any, rejected: torch.Tensor | None, deferred: Collection[str] = ()) -> None:
        """Keep the last row of each request of a step that drafts nothing; the drafter reads its other positions.

        All positions of the requests in `deferred` are kept. `state` is the runner's before sampling. `rejected`
        [requests] are the numbers of rejected draft tokens, `None` if the step verified none.
        """
        metadata = state.spec_decode_common_attn_metadata
        last: Any = slice(metadata.num_reqs)
        if metadata.max_query_len > 1:
            self._take_in(runner, state, deferred)
            self._defer(runner, state, deferred)
            last = _last(metadata)
            if rejected is not None:
                last -= rejected
        requests, states = runner.input_batch.req_ids, [layer[last] for layer in _read(state)]
        self.rows.add(requests, states, runner.input_ids.gpu[last], requests)

    def keep_of(self, left_out: Collection[str], runner: Any, state: Any) -> None:
        """Keep the row of each request that a drafting step has `left_out`; each has one position.

        `state` as for `keep`.
        """
        out, batch = frozenset(left_out), runner.input_batch.req_ids
        places = [place for place, request in enumerate(batch) if request in out]
        starts = state.spec_decode_common_attn_metadata.query_start_loc_cpu.numpy()
        rows = handed_over(torch.from_numpy(starts[places]), self._drafter.device)
        states = [layer.index_select(0, rows) for layer in _read(state)]
        self.rows.add([batch[place] for place in places], states, runner.input_ids.gpu.index_select(0, rows), batch)

    def catch_up(self, runner: Any, state: Any, requests: Collection[str]) -> None:
        """Run the drafter over the rows of these `requests`, and drop these rows; `state` as for `keep`."""
        rows_of = self.rows.by_request() if requests else None
        if not rows_of:
            return
        metadata, device = state.spec_decode_common_attn_metadata, self._drafter.device
        ends = _ends(metadata, metadata.query_start_loc_cpu.diff()[: metadata.num_reqs])
        spans = within(spans_of(rows_of, runner.input_batch.req_ids, requests, ends), self._length)
        positions, slots = self._where(runner, metadata, spans, ends)
        firsts = runner.input_ids.gpu[metadata.query_start_loc[: metadata.num_reqs].long()]
        # The token that follows a row is that of the request's next row, and for its last row the step's first token.
        following = [row for span in spans for row in (*span.rows[1:], self.rows.used + span.place)]
        tokens = torch.cat([self.rows.tokens(), firsts])[indices(following, device)]
        begin = 0
        for part in passes(spans, self._drafter.max_num_tokens):
            rows = indices([row for span in part for row in span.rows], device)
            end = begin + len(rows)
            batch = _batch(metadata, part, slots[begin:end])
            self._forward(tokens[begin:end], positions[..., begin:end], self.rows.states(rows), batch)
            begin = end
        self.rows.forget(requests)

    def _where(
        self, runner: Any, metadata: CommonAttentionMetadata, spans: Sequence[Span], begins: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the positions of the rows of the `spans` ([rows], or [3, rows] for M-RoPE), and their slots ([rows]).

        `begins` is the host's first position of each request in the step; its rows are directly before it.
        """
        of = [span.place for span in spans for _ in span.rows]
        back = [begins[place] - end + count for place, rows, end in spans for count in range(len(rows), 0, -1)]
        requests, before = indices([of, back], self._drafter.device)
        starts = metadata.query_start_loc[: metadata.num_reqs + 1].long()
        firsts = runner._get_positions(metadata.num_actual_tokens)[..., starts[:-1]]
        in_sequence = (metadata.seq_lens[: metadata.num_reqs] - starts.diff())[requests] - before
        size = self._drafter.block_size
        blocks = metadata.block_table_tensor[requests, in_sequence // size].long()
        return firsts[..., requests] - before, blocks * size + in_sequence % size

    def _defer(self, runner: Any, state: Any, deferred: Collection[str]) -> None:
        """Keep a row for each position of the requests in `deferred`, except the last."""
        requests, rows = runner.input_batch.req_ids, multiple(runner, state)
        waiting = [(requests[place], row) for place, span in rows if requests[place] in deferred for row in span]
        if waiting:
            places = indices([row for _, row in waiting], self._drafter.device)
            states = [layer[places] for layer in _read(state)]
            self.rows.add([name for name, _ in waiting], states, runner.input_ids.gpu[places], requests)

    def _take_in(self, runner: Any, state: Any, deferred: Collection[str]) -> None:
        """Run the drafter over all positions of the step except the last of each request, some at a time.

        Requests in `deferred` are left out.
        """
        metadata, requests = state.spec_decode_common_attn_metadata, runner.input_batch.req_ids
        ends = _ends(metadata, 1)
        spans = [
            Span(place, rows, ends[place]) for place, rows in multiple(runner, state) if requests[place] not in deferred
        ]
        for part in passes(within(spans, self._length), min(self._drafter.max_num_tokens, POSITIONS_PER_PASS)):
            on_host = torch.cat([torch.arange(span.rows[0], span.rows[-1] + 1) for span in part])
            rows = handed_over(on_host, self._drafter.device)
            positions = runner._get_positions(metadata.num_actual_tokens)[..., rows]
            batch = _batch(metadata, part, metadata.slot_mapping[rows])
            states = torch.cat([layer[rows] for layer in _read(state)], dim=-1)
            self._forward(runner.input_ids.gpu[rows + 1], positions, states, batch)

    def _forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, states: torch.Tensor, batch: CommonAttentionMetadata
    ) -> None:
        """Run the drafter's first pass over the rows of `batch`, as `SpecDecodeBaseProposer.propose` does.

        `states` [rows, row_size] are the target's. A DFlash head has no such pass: its keys and values of a known
        position are projected from the states alone.
        """
        drafter, count = self._drafter, batch.num_actual_tokens
        if drafter.method == "dflash":
            places = positions[0] if positions.dim() > 1 else positions  # of M-RoPE; the head has RoPE
            combined = drafter.model.combine_hidden_states(states)
            drafter.model.precompute_and_store_context_kv(combined, places.contiguous(), batch.slot_mapping)
            return
        drafter.input_ids[:count] = tokens
        drafter._set_positions(count, positions)
        is_combined = drafter.method == "eagle3"
        drafter.hidden_states[:count] = drafter.model.combine_hidden_states(states) if is_combined else states
        _, per_layer = drafter.build_per_group_and_layer_attn_metadata(batch)
        mode, padded, across = drafter._determine_batch_execution_and_padding(count)
        arguments, slots = drafter.build_model_inputs_first_pass(count, padded, None)
        with set_forward_context(
            per_layer,
            drafter.vllm_config,
            num_tokens=padded,
            num_tokens_across_dp=across,
            cudagraph_runtime_mode=mode,
            slot_mapping=drafter._get_slot_mapping(slots, batch.slot_mapping),
        ):
            drafter.model(**arguments)


def multiple(runner: Any, state: Any) -> list[tuple[int, range]]:
    """Return the place in the batch and the positions in the step, except the last, of each request with several."""
    metadata = state.spec_decode_common_attn_metadata
    starts = metadata.query_start_loc_cpu.tolist()
    count = min(metadata.num_reqs, len(runner.input_batch.req_ids))
    spans = [(place, range(starts[place], starts[place + 1] - 1)) for place in range(count)]
    return [(place, rows) for place, rows in spans if rows]


def _read(state: Any) -> Sequence[torch.Tensor]:
    """Return the target's hidden states in a step that the drafter reads: [tokens, hidden size] for each layer."""
    return state.aux_hidden_states or (state.hidden_states,)


def _last(metadata: CommonAttentionMetadata) -> torch.Tensor:
    """Return the place of each request's last token in the step: [requests]."""
    return metadata.query_start_loc[1 : metadata.num_reqs + 1].long() - 1


def _ends(metadata: CommonAttentionMetadata, ahead: torch.Tensor | int) -> list[int]:
    """Return the host's position of each request's end, `ahead` positions before the end of the step."""
    ends: list[int] = (metadata.seq_lens_cpu_upper_bound[: metadata.num_reqs] - ahead).tolist()
    return ends


def _batch(metadata: CommonAttentionMetadata, spans: Sequence[Span], slots: torch.Tensor) -> CommonAttentionMetadata:
    """Lay out a pass over the rows of the `spans`; `slots` [rows] are their KV slots."""
    device = slots.device
    lengths, ends = [len(span.rows) for span in spans], [span.end for span in spans]
    places_cpu, ends_cpu = torch.tensor([span.place for span in spans]), torch.tensor(ends, dtype=torch.int32)
    places = handed_over(places_cpu, device)
    # The host's lengths are too large after rejected drafts; the accelerator's are exact.
    short = metadata.seq_lens_cpu_upper_bound[places_cpu] - ends_cpu
    starts_cpu = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
    return CommonAttentionMetadata(
        query_start_loc=handed_over(starts_cpu, device),
        query_start_loc_cpu=starts_cpu,
        seq_lens=metadata.seq_lens[places] - handed_over(short, device),
        seq_lens_cpu_upper_bound=ends_cpu,
        num_reqs=len(lengths),
        num_actual_tokens=sum(lengths),
        max_query_len=max(lengths),
        max_seq_len=max(ends),
        block_table_tensor=metadata.block_table_tensor[places],
        slot_mapping=slots,
        causal=True,
    )
