"""What the drafter has not seen yet, and how it catches up when it is wanted again.

While K is 0 for all, the drafter does not run, so the tokens decoded meanwhile are missing from its KV cache, and
drafts would be poor for a while. It can make them up at any time: of a position, an EAGLE-type drafter needs the
target's hidden state and the token that followed. So each step without the drafter leaves one row per request, and
before the drafter next runs, the rows of the running requests go through it in one forward pass, as a prompt would:
no draft slots, no sampling.

*Rows* are few: `plan.ROW_LIMIT`, and never more than one pass of the drafter takes. The planner knows the limit and
runs the drafter before it is reached. A row is one hidden state of the drafter in the model's type: for a hidden size
of 4,096 in bfloat16, 32 MiB in all. The memory is taken with the drafter's weights, before vLLM measures what is left
for the KV cache.

*Never* does a row reach another request's cache: rows of a request that was preempted, ended or began anew are dropped,
because its slots may be another's by now. *Nothing waits* for the accelerator: rows are copied and gathered in stream
order, and which row is whose is known on the host.

A step without the drafter that cannot leave rows (vLLM could not draft after a prefill or after verified drafts), and
a running request that sits out the step in which the others catch up, lose them. What is missing then stays missing:
drafts are lossless, and for a while less often accepted.
"""

from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from vllm.forward_context import set_forward_context
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

from engine_adapter.compat import STEERABLE_METHODS, backlog_rows

BACKLOG = "_specpilot_backlog"
"""The attribute of a drafter that holds its backlog."""

_INSTALLED = "_specpilot_backlogs"


class Lag(NamedTuple):
    """Which rows go through the drafter: for each request, in the order of the batch, its place and its rows."""

    places: list[int]
    rows: list[list[int]]


def lag(steps: Sequence[Sequence[str]], batch: Sequence[str], anew: Collection[str]) -> Lag:
    """Return the rows of the requests in `batch` that are not `anew`.

    `steps` names, for each step kept, its requests in the order of their rows.
    """
    rows: dict[str, list[int]] = {}
    row = 0
    for requests in steps:
        for request in requests:
            rows.setdefault(request, []).append(row)
            row += 1
    places = [place for place, request in enumerate(batch) if request in rows and request not in anew]
    return Lag(places, [rows[batch[place]] for place in places])


class Backlog:
    """The rows of one drafter: `keep` after a step without it, `catch_up` before it runs."""

    def __init__(self, drafter: Any) -> None:
        limit = backlog_rows(drafter.vllm_config)
        device = drafter.device
        positions = (3, limit) if drafter.vllm_config.model_config.uses_mrope else (limit,)
        self._drafter = drafter
        self._limit = limit
        self._hidden = torch.zeros((limit, drafter.hidden_size), dtype=drafter.dtype, device=device)
        self._tokens = torch.zeros(limit, dtype=torch.int32, device=device)
        self._positions = torch.zeros(positions, dtype=torch.int64, device=device)
        self._slots = torch.zeros(limit, dtype=torch.int64, device=device)
        self._steps: list[list[str]] = []
        self._used = 0

    def keep(self, runner: Any, state: Any) -> None:
        """Keep the rows of a step after which the drafter does not run; `state` is the runner's, before sampling."""
        metadata = state.spec_decode_common_attn_metadata
        begin, count = self._used, metadata.num_reqs
        end = begin + count
        if metadata.max_query_len > 1 or end > self._limit or _anew(state.scheduler_output):
            self.drop()
            return
        hidden = (
            state.hidden_states[:count]
            if state.aux_hidden_states is None
            else torch.cat([layer[:count] for layer in state.aux_hidden_states], dim=-1)
        )
        self._hidden[begin:end] = self._combined(hidden)
        self._tokens[begin:end] = runner.input_ids.gpu[:count]
        self._positions[..., begin:end] = runner._get_positions(count)
        self._slots[begin:end] = metadata.slot_mapping[:count]
        self._steps.append(list(runner.input_batch.req_ids))
        self._used = end

    def drop(self) -> None:
        """Forget all rows."""
        self._steps.clear()
        self._used = 0

    def catch_up(self, runner: Any, state: Any) -> None:
        """Run the drafter over the rows of the step's requests, and forget all rows; `state` as for `keep`."""
        if not self._used:
            return
        missing = lag(self._steps, runner.input_batch.req_ids, _anew(state.scheduler_output))
        if missing.places:
            self._run(runner, state.spec_decode_common_attn_metadata, missing)
        self.drop()

    def _run(self, runner: Any, metadata: CommonAttentionMetadata, missing: Lag) -> None:
        device = self._hidden.device
        used, lengths = self._used, [len(rows) for rows in missing.rows]
        count = sum(lengths)
        # The token that follows a row is the request's next row's, and after its last row the step's first.
        rows = _indices([row for rows in missing.rows for row in rows], device)
        following = _indices(
            [
                row
                for place, rows in zip(missing.places, missing.rows, strict=True)
                for row in (*rows[1:], used + place)
            ],
            device,
        )
        firsts = runner.input_ids.gpu[metadata.query_start_loc[: metadata.num_reqs].long()]
        tokens = torch.cat([self._tokens[:used], firsts])[following]
        places_cpu = torch.tensor(missing.places)
        places = places_cpu.to(device, non_blocking=True)
        starts_cpu = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
        known = metadata.seq_lens_cpu_upper_bound
        queries_cpu = metadata.query_start_loc_cpu.diff()[: metadata.num_reqs]
        batch = CommonAttentionMetadata(
            query_start_loc=starts_cpu.to(device, non_blocking=True),
            query_start_loc_cpu=starts_cpu,
            seq_lens=(metadata.seq_lens - metadata.naive_query_lens())[places],
            seq_lens_cpu_upper_bound=None if known is None else (known - queries_cpu)[places_cpu],
            num_reqs=len(lengths),
            num_actual_tokens=count,
            max_query_len=max(lengths),
            max_seq_len=metadata.max_seq_len,
            block_table_tensor=metadata.block_table_tensor[places],
            slot_mapping=self._slots[rows],
            causal=True,
        )
        self._forward(count, tokens, self._positions[..., rows], self._hidden[rows], batch)

    def _forward(
        self,
        count: int,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        hidden: torch.Tensor,
        batch: CommonAttentionMetadata,
    ) -> None:
        """Run the drafter's first pass over `count` rows, as `SpecDecodeBaseProposer.propose` does."""
        drafter = self._drafter
        drafter.input_ids[:count] = tokens
        drafter._set_positions(count, positions)
        drafter.hidden_states[:count] = hidden
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

    def _combined(self, hidden: torch.Tensor) -> torch.Tensor:
        if self._drafter.method == "eagle3":
            return self._drafter.model.combine_hidden_states(hidden)
        return hidden


def install() -> None:
    """Give each steered drafter its backlog as it is loaded; once in this process."""
    if getattr(SpecDecodeBaseProposer, _INSTALLED, False):
        return
    load = SpecDecodeBaseProposer.load_model

    def load_with_backlog(self: Any, *args: Any, **kwargs: Any) -> None:
        load(self, *args, **kwargs)
        if self.method in STEERABLE_METHODS:
            setattr(self, BACKLOG, Backlog(self))

    SpecDecodeBaseProposer.load_model = load_with_backlog
    setattr(SpecDecodeBaseProposer, _INSTALLED, True)


def _anew(scheduler_output: Any) -> set[str]:
    """Return the requests of a step that are prefilled from its beginning: new ones and those resumed."""
    return {request.req_id for request in scheduler_output.scheduled_new_reqs} | set(
        scheduler_output.scheduled_cached_reqs.resumed_req_ids
    )


def _indices(values: list[int], device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64).to(device, non_blocking=True)
