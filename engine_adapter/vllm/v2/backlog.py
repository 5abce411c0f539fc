"""The positions that the drafter has not read, and its catching up, on model runner V2.

The rules are those of model runner V1 (`vllm.v1.backlog`). For a request that is left out, each step adds one row: the
target's states at its last position, and the token that follows. All positions of a deferred prompt
(`StepPlan.deferred`) are rows. Before the request's next draft its rows go through the head in one pass. There are
these differences to V1:

- The token that follows a position is known when the speculator is called, so a row contains it.
- Block tables are kept by request slot, so a pass finds its KV slots by the slots of its requests. It has its own
  tables and slot mappings, because those of the step are read again after it.
- Passes run without a CUDA graph. Graphs share one pool of memory, and the replay of a drafter's PIECEWISE graph could
  overwrite the target's outputs. Without a replay nothing is overwritten, so nothing is copied.

vLLM's V2 does not limit sequences to the drafter's own length. The adapter's scheduler drafts nothing beyond this
length, and positions beyond it are left out here.
"""

from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from vllm.v1.worker.gpu.attn_utils import build_slot_mappings_by_layer

from specpilot.engine_adapter.plan.missing_rows import Span, passes, spans_of, within
from specpilot.engine_adapter.vllm.embeddings import of_positions
from specpilot.engine_adapter.vllm.engine_facts import backlog_rows, drafter_length, row_size, states_stay
from specpilot.engine_adapter.vllm.rows import POSITIONS_PER_PASS, SPARE_ROWS, Rows, handed_over, indices
from specpilot.engine_adapter.vllm.v2.attention import Pass
from specpilot.engine_adapter.vllm.v2.step import Step


class Backlog:
    """The backlog of one speculator: `catch_up` before it drafts, `keep` for the requests that it leaves out.

    `rows` are the waiting rows.
    """

    def __init__(self, speculator: Any) -> None:
        config = speculator.vllm_config
        rows = backlog_rows(config)
        size = max(rows + rows // SPARE_ROWS, config.scheduler_config.max_num_seqs)
        self._speculator = speculator
        self._length = drafter_length(config)
        can_hold = states_stay(config, speculator.device.type)
        self.rows = Rows(size, row_size(config), speculator.dtype, speculator.device, can_hold=can_hold)
        self._slots: torch.Tensor | None = None

    def keep(self, step: Step, deferred: Collection[str] = ()) -> None:
        """Keep the last row of each request of a step that drafts nothing; the head reads its other positions.

        All positions of the requests in `deferred` are kept.
        """
        last: Any = slice(step.batch.num_reqs)
        if step.batch.num_tokens > step.batch.num_reqs:
            self._take_in(step, deferred)
            self._defer(step, deferred)
            last = step.last()
        self.rows.add(step.requests, [layer[last] for layer in step.states], step.following, step.requests)

    def keep_of(self, left_out: Collection[str], step: Step) -> None:
        """Keep the row of each request that a drafting step has `left_out`; each has one position."""
        out = frozenset(left_out)
        places = [place for place, request in enumerate(step.requests) if request in out]
        chosen = indices(places, self._speculator.device)
        last = step.last()[chosen]
        states = [layer[last] for layer in step.states]
        self.rows.add([step.requests[place] for place in places], states, step.following[chosen], step.requests)

    def catch_up(self, step: Step, requests: Collection[str]) -> None:
        """Run the head over the rows of these `requests`, and drop these rows."""
        rows_of = self.rows.by_request() if requests else None
        if not rows_of:
            return
        spans = within(spans_of(rows_of, step.requests, requests, step.begins), self._length)
        tokens = self.rows.tokens()
        for part in passes(spans, self._speculator.max_num_tokens):
            rows = indices([row for span in part for row in span.rows], self._speculator.device)
            self._forward(step, part, tokens[rows], self.rows.states(rows))
        self.rows.forget(requests)

    def _defer(self, step: Step, deferred: Collection[str]) -> None:
        """Keep a row for each position of the requests in `deferred`, except the last."""
        waiting = [
            (step.requests[place], row)
            for place, span in step.multiple
            if step.requests[place] in deferred
            for row in span
        ]
        if waiting:
            rows = indices([row for _, row in waiting], self._speculator.device)
            states = [layer[rows] for layer in step.states]
            self.rows.add([name for name, _ in waiting], states, step.batch.input_ids[rows + 1], step.requests)

    def _take_in(self, step: Step, deferred: Collection[str]) -> None:
        """Run the head over all positions of the step except the last of each request, some at a time.

        Requests in `deferred` are left out.
        """
        self._take_in_cut(step)
        requests, ends = step.requests, step.ends
        spans = [Span(place, rows, ends[place] - 1) for place, rows in step.multiple if requests[place] not in deferred]
        limit = min(self._speculator.max_num_tokens, POSITIONS_PER_PASS)
        for part in passes(within(spans, self._length), limit):
            on_host = torch.cat([torch.arange(span.rows[0], span.rows[-1] + 1) for span in part])
            rows = handed_over(on_host, self._speculator.device)
            states = torch.cat([layer[rows] for layer in step.states], dim=-1)
            images = None if step.images is None else of_positions(on_host, *step.images, rows.device)
            self._forward(step, part, step.batch.input_ids[rows + 1], states, images=images)

    def _take_in_cut(self, step: Step) -> None:
        """Run the head over all positions except the last of each request whose drafts were `cut` (`Step.cut`)."""
        cut, device = step.cut, self._speculator.device
        starts_cpu = step.batch.query_start_loc_np[: cut + 1]
        count = int(starts_cpu[-1]) - cut
        if count == 0:
            return
        if max(step.ends[:cut]) - 1 > self._length:
            # A request grows too long for the head in this step, and the host does not know the request of each row. So
            # the rows of the other requests are left out too; their next drafts are accepted a little less.
            return
        requests = torch.arange(cut, device=device)
        starts = step.batch.query_start_loc[: cut + 1] - torch.arange(cut + 1, device=device, dtype=torch.int32)
        rows = torch.arange(count, device=device)
        rows += torch.repeat_interleave(requests, starts.diff().long(), output_size=count)
        states = torch.cat([layer[rows] for layer in step.states], dim=-1)
        # The host knows only the sum of the requests' rows, and that no request has more than was scheduled.
        lengths, ends = (np.diff(starts_cpu) - 1).tolist(), step.ends
        part = [Span(place, range(lengths[place]), ends[place] - 1) for place in range(cut)]
        longest = int(step.batch.num_scheduled_tokens[:cut].max()) - 1
        self._forward(step, part, step.batch.input_ids[rows + 1], states, (starts, longest))

    def _forward(  # noqa: PLR0913, PLR0917 - the parts of a pass
        self,
        step: Step,
        part: Sequence[Span],
        tokens: torch.Tensor,
        states: torch.Tensor,
        known: tuple[torch.Tensor, int] | None = None,
        images: tuple[Sequence[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        """Run the head over the rows of `part`, whose ends are those on the host.

        `tokens` [rows] are the tokens that follow the rows, `states` [rows, row_size] the target's states. `known`, if
        the lengths in `part` are not exact: the first row of each request, [requests + 1], and the largest number of
        rows of a request. `images` as in `Step`, of the rows.
        """
        speculator, device, count = self._speculator, self._speculator.device, len(tokens)
        places, lengths = [span.place for span in part], [len(span.rows) for span in part]
        starts_cpu = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
        ends_cpu = torch.tensor([span.end for span in part], dtype=torch.int32)
        too_long_by = step.overshoot(places, device)
        ends = handed_over(ends_cpu, device)
        starts, longest = (handed_over(starts_cpu, device), max(lengths)) if known is None else known
        queries = handed_over(starts_cpu.diff(), device) if known is None else starts.diff()
        seq_lens = ends - too_long_by
        # Position of row j of the pass: the request's end, minus the end of its rows in the pass, plus j.
        positions = torch.repeat_interleave((seq_lens - starts[1:]).long(), queries, output_size=count)
        positions += torch.arange(count, device=device)

        buffers = speculator.input_buffers
        buffers.input_ids[:count] = tokens
        buffers.positions[:count] = positions
        is_combined = speculator.method == "eagle3"
        speculator.hidden_states[:count] = speculator.model.combine_hidden_states(states) if is_combined else states
        tables = speculator.block_tables
        if self._slots is None:
            self._slots = torch.empty_like(tables.slot_mappings)
        of_requests = step.batch.idx_mapping[indices(places, device)]
        slots = tables.compute_slot_mappings(of_requests, starts, positions, count, out=self._slots)
        tables_of = [table.gpu[of_requests] for table in tables.block_tables]
        rows = Pass(starts, starts_cpu, seq_lens, ends_cpu, tables_of, slots, positions, longest)
        by_layer = build_slot_mappings_by_layer(slots, speculator.kv_cache_config)
        speculator._run_model(count, rows.metadata(speculator), by_layer, None, mm_inputs=images)
