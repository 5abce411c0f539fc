"""What the drafter has not seen yet, and how it catches up when it is wanted again.

A request that is not drafted for does not go through the drafter, so what it decodes meanwhile is missing from the
draft KV cache, and drafts would be poor for a while. It can be made up at any time: of a position, an EAGLE-type
drafter needs the target's hidden state and the token that followed. So each step leaves one row for each such request,
and before it is next drafted for, its rows go through the drafter in one forward pass, as a prompt would: no draft
slots, no sampling. Who catches up in a step, and whom a step that drafts leaves out, the scheduler says
(`engine_adapter.plan.planner`); the others' rows wait on.

*Several positions* of a request, where nothing is drafted after the step (a prompt, verified drafts), go through such a
pass at once, except the last one: the token that follows it is only known in the next step, so it is the row that the
step leaves. Of a short prompt that the plan holds back (`StepPlan.held`), all positions are rows. The same holds where
vLLM cannot draft because a request is beyond the drafter's length limit. Positions past the limit are left out: nothing
will ever be drafted from them.

*Rows* take a bounded piece of memory (`compat.backlog_rows`): a row is what the target left for the head to read, for
EAGLE-3 the hidden states of three layers, 24 KiB for a hidden size of 4,096 in bfloat16. What the head's first layer
makes of them is a third of that, but most rows are never read, and it is computed only of those that are. The memory
is taken with the drafter's weights, before vLLM measures what is left for the KV cache. The planner knows the bound and
lets requests catch up before it is reached. What rows leave behind is used again when no row waits, or no room is left;
an eighth more than the bound keeps it rare that rows move for that.

*Never* does a row reach another request's cache: rows of a request that ended, was resumed after a preemption, or began
anew are dropped before the step that tells of it (`engine_adapter.vllm.undrafted`), because its slots may be another's
now. *Nothing waits* for the accelerator: rows are copied and gathered in stream order, and which row is whose is known
on the host.

A running request that sits out the step in which room is made loses its rows. What is missing then stays missing:
drafts are lossless, and for a while less often accepted.
"""

from collections.abc import Collection, Sequence
from itertools import accumulate, chain
from typing import Any

import torch
from vllm.forward_context import set_forward_context
from vllm.v1.attention.backend import CommonAttentionMetadata

from specpilot.engine_adapter.plan.lag import Lag, lag, passes, within
from specpilot.engine_adapter.vllm.compat import backlog_rows, drafter_length, largest_graph, row_size, states_stay
from specpilot.engine_adapter.vllm.rows import Rows, handed_over, indices
from specpilot.engine_adapter.vllm.tuning import SPARE_ROWS, TAKEN_IN_TOGETHER


class Backlog:
    """What one drafter has not seen: `catch_up` after each step, before it runs; then `keep` for who waits.

    `rows` are those that wait.
    """

    def __init__(self, drafter: Any) -> None:
        config = drafter.vllm_config
        rows = backlog_rows(config)
        size = max(
            rows + rows // SPARE_ROWS, config.scheduler_config.max_num_seqs
        )  # where vLLM cannot draft, one for each
        self._drafter = drafter
        self._length = drafter_length(config)
        self._states_stay = states_stay(config, drafter.device.type)
        self.rows = Rows(size, row_size(config), drafter.dtype, drafter.device, can_hold=self._states_stay)
        self._inputs: torch.Tensor | None = None  # the runner's input tokens, as many as the latest plain step had

    def beyond_passes(self, state: Any, *, has_prompt_logprobs: bool) -> Any:
        """Return the runner's `state` with what is read after a pass of the drafter where no such pass writes.

        That is what the target left for the drafter, and the last layer's states where these are asked for the
        probabilities of a prompt's tokens.

        CUDA graphs share one pool of memory, so a replay of the drafter's may write over the outputs of the target's.
        vLLM reads them before its drafter runs; here passes go before that, so a step with such passes copies them. A
        step larger than the largest graph left them outside the pool: that is most of what a long prompt would copy.
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
        """Keep the row of each request of a step of one position each, of which vLLM laid out nothing for a drafter."""
        requests, states = runner.input_batch.req_ids, _read(state)
        count = len(requests)
        if states[0].size(0) > count:  # padded
            states = [layer[:count] for layer in states]
        if self._inputs is None or self._inputs.size(0) != count:
            self._inputs = runner.input_ids.gpu[:count]
        self.rows.add(requests, states, self._inputs, requests)

    def keep(self, runner: Any, state: Any, rejected: torch.Tensor | None, held: Collection[str] = ()) -> None:
        """Keep the last row of each request of a step that drafts nothing; the drafter takes in its other positions.

        Of the requests in `held` the other positions are kept too. `state` is the runner's, as it was before sampling.
        `rejected` says how many draft tokens of each request were rejected ([requests]), `None` that the step verified
        none.
        """
        metadata = state.spec_decode_common_attn_metadata
        last: Any = slice(metadata.num_reqs)
        if metadata.max_query_len > 1:
            self._take_in(runner, state, held)
            self._hold(runner, state, held)
            last = _last(metadata)
            if rejected is not None:
                last -= rejected
        requests, states = runner.input_batch.req_ids, [layer[last] for layer in _read(state)]
        self.rows.add(requests, states, runner.input_ids.gpu[last], requests)

    def keep_of(self, left_out: Collection[str], runner: Any, state: Any) -> None:
        """Keep the row of each request that a step which drafts for others has `left_out`; each came with one position.

        `state` as for `keep`.
        """
        out, batch = frozenset(left_out), runner.input_batch.req_ids
        places = [place for place, request in enumerate(batch) if request in out]
        starts = state.spec_decode_common_attn_metadata.query_start_loc_cpu.numpy()
        own = handed_over(torch.from_numpy(starts[places]), self._drafter.device)
        states = [layer.index_select(0, own) for layer in _read(state)]
        self.rows.add([batch[place] for place in places], states, runner.input_ids.gpu.index_select(0, own), batch)

    def catch_up(self, runner: Any, state: Any, wanted: Collection[str]) -> None:
        """Run the drafter over the rows of the requests `wanted`, and forget these rows; `state` as for `keep`."""
        rows_of = self.rows.by_request() if wanted else None
        if not rows_of:
            return
        metadata, device = state.spec_decode_common_attn_metadata, self._drafter.device
        missing = lag(rows_of, runner.input_batch.req_ids, wanted)
        queries = metadata.query_start_loc_cpu.diff()[: metadata.num_reqs]
        missing, ends = within(missing, _ends(metadata, queries), self._length)
        waiting = [len(rows_of[runner.input_batch.req_ids[place]]) for place in missing.places]
        positions, slots = self._where(runner, metadata, missing, waiting)
        firsts = runner.input_ids.gpu[metadata.query_start_loc[: metadata.num_reqs].long()]
        # The token that follows a row is the request's next row's, and after its last row the step's first.
        following = [
            row
            for place, rows in zip(missing.places, missing.rows, strict=True)
            for row in (*rows[1:], self.rows.used + place)
        ]
        tokens = torch.cat([self.rows.tokens(), firsts])[indices(following, device)]
        begin = 0
        for part, part_ends in passes(missing, ends, self._drafter.max_num_tokens):
            rows = indices([*chain.from_iterable(part.rows)], device)
            end = begin + len(rows)
            batch = _batch(metadata, part, part_ends, slots[begin:end])
            self._forward(tokens[begin:end], positions[..., begin:end], self.rows.states(rows), batch)
            begin = end
        self.rows.forget(wanted)

    def _where(
        self, runner: Any, metadata: CommonAttentionMetadata, missing: Lag, waiting: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the positions of the rows of `missing` ([rows], or [3, rows] for M-RoPE), and their slots ([rows]).

        The rows of a request, of which so many are `waiting`, are those right before its first position in the step.
        """
        of = [place for place, rows in zip(missing.places, missing.rows, strict=True) for _ in rows]
        back = [count - i for count, rows in zip(waiting, missing.rows, strict=True) for i in range(len(rows))]
        requests, before = indices([of, back], self._drafter.device)
        starts = metadata.query_start_loc[: metadata.num_reqs + 1].long()
        firsts = runner._get_positions(metadata.num_actual_tokens)[..., starts[:-1]]
        in_sequence = (metadata.seq_lens[: metadata.num_reqs] - starts.diff())[requests] - before
        size = self._drafter.block_size
        blocks = metadata.block_table_tensor[requests, in_sequence // size].long()
        return firsts[..., requests] - before, blocks * size + in_sequence % size

    def _hold(self, runner: Any, state: Any, held: Collection[str]) -> None:
        """Keep a row for each position of the requests in `held`, except the last."""
        requests, rows = runner.input_batch.req_ids, multiple(runner, state)
        waiting = [(requests[place], row) for place, own in rows if requests[place] in held for row in own]
        if waiting:
            places = indices([row for _, row in waiting], self._drafter.device)
            states = [layer[places] for layer in _read(state)]
            self.rows.add([name for name, _ in waiting], states, runner.input_ids.gpu[places], requests)

    def _take_in(self, runner: Any, state: Any, held: Collection[str]) -> None:
        """Run the drafter over all positions of the step except the last of each request, some at a time.

        Those in `held` are left out.
        """
        metadata, requests = state.spec_decode_common_attn_metadata, runner.input_batch.req_ids
        own = Lag([], [])
        for place, rows in multiple(runner, state):
            if requests[place] not in held:
                own.places.append(place)
                own.rows.append(rows)
        own, ends = within(own, _ends(metadata, 1), self._length)
        for part, part_ends in passes(own, ends, min(self._drafter.max_num_tokens, TAKEN_IN_TOGETHER)):
            on_host = torch.cat([torch.arange(rows[0], rows[-1] + 1) for rows in part.rows])
            rows = handed_over(on_host, self._drafter.device)
            positions = runner._get_positions(metadata.num_actual_tokens)[..., rows]
            batch = _batch(metadata, part, part_ends, metadata.slot_mapping[rows])
            states = torch.cat([layer[rows] for layer in _read(state)], dim=-1)
            self._forward(runner.input_ids.gpu[rows + 1], positions, states, batch)

    def _forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, states: torch.Tensor, batch: CommonAttentionMetadata
    ) -> None:
        """Run the drafter's first pass over the rows of `batch`, as `SpecDecodeBaseProposer.propose` does.

        `states` [rows, row_size] are the target's.
        """
        drafter, count = self._drafter, batch.num_actual_tokens
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
    """Return place in the batch and positions in the step, except the last, of each request that has several."""
    metadata = state.spec_decode_common_attn_metadata
    starts = metadata.query_start_loc_cpu.tolist()
    count = min(metadata.num_reqs, len(runner.input_batch.req_ids))
    spans = [(place, range(starts[place], starts[place + 1] - 1)) for place in range(count)]
    return [(place, rows) for place, rows in spans if rows]


def _read(state: Any) -> Sequence[torch.Tensor]:
    """Return the target's hidden states of a step that the drafter reads: [tokens, hidden size] for each layer."""
    return state.aux_hidden_states or (state.hidden_states,)


def _last(metadata: CommonAttentionMetadata) -> torch.Tensor:
    """Return where the last token of each request stands in the step: [requests]."""
    return metadata.query_start_loc[1 : metadata.num_reqs + 1].long() - 1


def _ends(metadata: CommonAttentionMetadata, ahead: torch.Tensor | int) -> list[int]:
    """Return for each request where its sequence ends `ahead` positions before the step's end, as the host knows."""
    ends: list[int] = (metadata.seq_lens_cpu_upper_bound[: metadata.num_reqs] - ahead).tolist()
    return ends


def _batch(
    metadata: CommonAttentionMetadata, missing: Lag, ends: Sequence[int], slots: torch.Tensor
) -> CommonAttentionMetadata:
    """Lay out a pass over the rows of `missing`, which end at `ends`; `slots` [rows] is where they go."""
    device = slots.device
    lengths = [len(rows) for rows in missing.rows]
    places_cpu, ends_cpu = torch.tensor(missing.places), torch.tensor(ends, dtype=torch.int32)
    places = handed_over(places_cpu, device)
    # What the host knows is too long where drafts were rejected; the accelerator knows better.
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
