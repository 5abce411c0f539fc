"""What the drafter has not seen yet, and how it catches up when it is wanted again.

While K is 0 for all, the drafter does not run, so the tokens decoded meanwhile are missing from its KV cache, and
drafts would be poor for a while. It can make them up at any time: of a position, an EAGLE-type drafter needs the
target's hidden state and the token that followed. So each step without the drafter leaves one row per request, and
before the drafter next runs, the rows of the running requests go through it in one forward pass, as a prompt would:
no draft slots, no sampling.

*Where vLLM cannot draft* because a request is beyond the drafter's length limit, also steps that prefill or verify
drafts must not be lost. The drafter then takes in their positions in such a pass too, but for each request's last one:
the token that follows it is only known in the next step, so it is the row that the step leaves. What lies past the
limit is left out: it will never be drafted from.

*Rows* are few: `plan.ROW_LIMIT`, and never more than one pass of the drafter takes. The planner knows the limit and
runs the drafter before it is reached. A row is one hidden state of the drafter in the model's type: for a hidden size
of 4,096 in bfloat16, 32 MiB in all. The memory is taken with the drafter's weights, before vLLM measures what is left
for the KV cache.

*Never* does a row reach another request's cache: rows of a request that was preempted, ended or began anew are dropped,
because its slots may be another's by now. *Nothing waits* for the accelerator: rows are copied and gathered in stream
order, and which row is whose is known on the host.

A running request that sits out the step in which the others catch up loses its rows. What is missing then stays
missing: drafts are lossless, and for a while less often accepted.
"""

from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from vllm.forward_context import set_forward_context
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

from engine_adapter.compat import STEERABLE_METHODS, backlog_rows, drafter_length

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


def within(missing: Lag, ends: Sequence[int], limit: int) -> tuple[Lag, list[int]]:
    """Return the part of `missing` at positions below `limit`, and where the rows of each request in it end.

    `ends` says for each request of the batch at which position its rows end: the first that is none of them.
    """
    cut = [
        (place, rows[: len(rows) - max(0, ends[place] - limit)])
        for place, rows in zip(missing.places, missing.rows, strict=True)
        if len(rows) > ends[place] - limit
    ]
    places = [place for place, _ in cut]
    return Lag(places, [rows for _, rows in cut]), [min(ends[place], limit) for place in places]


class Backlog:
    """The rows of one drafter: `keep` after a step without it, `catch_up` before it runs."""

    def __init__(self, drafter: Any) -> None:
        config = drafter.vllm_config
        size = max(backlog_rows(config), config.scheduler_config.max_num_seqs)  # where vLLM cannot draft, one for each
        device = drafter.device
        positions = (3, size) if config.model_config.uses_mrope else (size,)
        self._drafter = drafter
        self._length = drafter_length(config)
        self._hidden = torch.zeros((size, drafter.hidden_size), dtype=drafter.dtype, device=device)
        self._tokens = torch.zeros(size, dtype=torch.int32, device=device)
        self._positions = torch.zeros(positions, dtype=torch.int64, device=device)
        self._slots = torch.zeros(size, dtype=torch.int64, device=device)
        self._steps: list[list[str]] = []
        self._used = 0

    def keep(self, runner: Any, state: Any, rejected: torch.Tensor | None) -> None:
        """Keep the last row of each request of a step after which vLLM does not draft; the drafter takes in the others.

        `state` is the runner's, as it was before sampling. `rejected` says how many draft tokens of each request were
        rejected ([requests]), `None` that the step verified none.
        """
        metadata = state.spec_decode_common_attn_metadata
        count = metadata.num_reqs
        last: Any = slice(count)
        if metadata.max_query_len > 1:
            self._take_in(runner, state)
            last = metadata.query_start_loc[1 : count + 1].long() - 1
            if rejected is not None:
                last -= rejected
        if self._used + count > len(self._tokens):
            self.drop()
        begin, end = self._used, self._used + count
        self._hidden[begin:end] = self._combined(state, last)
        self._tokens[begin:end] = runner.input_ids.gpu[last]
        self._positions[..., begin:end] = runner._get_positions(metadata.num_actual_tokens)[..., last]
        self._slots[begin:end] = metadata.slot_mapping[last]
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
        metadata, device = state.spec_decode_common_attn_metadata, self._hidden.device
        missing = lag(self._steps, runner.input_batch.req_ids, _anew(state.scheduler_output))
        queries = metadata.query_start_loc_cpu.diff()[: metadata.num_reqs]
        missing, ends = within(missing, _ends(metadata, queries), self._length)
        if missing.places:
            used = self._used
            # The token that follows a row is the request's next row's, and after its last row the step's first.
            following = [
                row
                for place, rows in zip(missing.places, missing.rows, strict=True)
                for row in (*rows[1:], used + place)
            ]
            firsts = runner.input_ids.gpu[metadata.query_start_loc[: metadata.num_reqs].long()]
            rows = _indices([row for rows in missing.rows for row in rows], device)
            tokens = torch.cat([self._tokens[:used], firsts])[_indices(following, device)]
            batch = _batch(metadata, missing, ends, self._slots[rows])
            self._forward(tokens, self._positions[..., rows], self._hidden[rows], batch)
        self.drop()

    def _take_in(self, runner: Any, state: Any) -> None:
        """Run the drafter over all positions of the step but the last of each request."""
        metadata = state.spec_decode_common_attn_metadata
        starts = metadata.query_start_loc_cpu.tolist()
        own = Lag([], [])
        for place in range(metadata.num_reqs):
            if starts[place + 1] - starts[place] > 1:
                own.places.append(place)
                own.rows.append(list(range(starts[place], starts[place + 1] - 1)))
        own, ends = within(own, _ends(metadata, 1), self._length)
        if own.places:
            rows = _indices([row for rows in own.rows for row in rows], self._hidden.device)
            positions = runner._get_positions(metadata.num_actual_tokens)[..., rows]
            batch = _batch(metadata, own, ends, metadata.slot_mapping[rows])
            self._forward(runner.input_ids.gpu[rows + 1], positions, self._combined(state, rows), batch)

    def _forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, hidden: torch.Tensor, batch: CommonAttentionMetadata
    ) -> None:
        """Run the drafter's first pass over the rows of `batch`, as `SpecDecodeBaseProposer.propose` does."""
        drafter, count = self._drafter, batch.num_actual_tokens
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

    def _combined(self, state: Any, rows: Any) -> torch.Tensor:
        """Return the drafter's input states at `rows`, indices or a slice, of the step's tokens."""
        if state.aux_hidden_states is None:
            hidden = state.hidden_states[rows]
        else:
            hidden = torch.cat([layer[rows] for layer in state.aux_hidden_states], dim=-1)
        return self._drafter.model.combine_hidden_states(hidden) if self._drafter.method == "eagle3" else hidden


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


def _ends(metadata: CommonAttentionMetadata, ahead: torch.Tensor | int) -> list[int]:
    """Return for each request where its sequence ends `ahead` positions before the step's end, as the host knows."""
    ends: list[int] = (metadata.seq_lens_cpu_upper_bound[: metadata.num_reqs] - ahead).tolist()
    return ends


def _batch(
    metadata: CommonAttentionMetadata, missing: Lag, ends: list[int], slots: torch.Tensor
) -> CommonAttentionMetadata:
    """Lay out a pass over the rows of `missing`, which end at `ends`; `slots` [rows] is where they go."""
    device = slots.device
    lengths = [len(rows) for rows in missing.rows]
    places_cpu, ends_cpu = torch.tensor(missing.places), torch.tensor(ends, dtype=torch.int32)
    places = places_cpu.to(device, non_blocking=True)
    # What the host knows is too long where drafts were rejected; the accelerator knows better.
    short = metadata.seq_lens_cpu_upper_bound[places_cpu] - ends_cpu
    starts_cpu = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
    return CommonAttentionMetadata(
        query_start_loc=starts_cpu.to(device, non_blocking=True),
        query_start_loc_cpu=starts_cpu,
        seq_lens=metadata.seq_lens[places] - short.to(device, non_blocking=True),
        seq_lens_cpu_upper_bound=ends_cpu,
        num_reqs=len(lengths),
        num_actual_tokens=sum(lengths),
        max_query_len=max(lengths),
        max_seq_len=max(ends),
        block_table_tensor=metadata.block_table_tensor[places],
        slot_mapping=slots,
        causal=True,
    )


def _indices(values: list[int], device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64).to(device, non_blocking=True)
