"""One step of model runner V2 as input of its speculator, after sampling: positions, states, tokens, rejected drafts.

These are the arguments of vLLM's `propose`, under names that state their meaning to a drafter; nothing is copied.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from specpilot.engine_adapter.vllm.rows import handed_over


@dataclass(frozen=True, slots=True)
class Step:
    """The arguments of `propose` that the backlog reads.

    `batch` is vLLM's `InputBatch`. `states` are the target's hidden states that the head reads, [tokens, hidden size]
    for each layer. `rejected` [requests] are the numbers of rejected draft tokens, `following` [requests] the tokens
    after the last position that stays: the one sampled now, or the prompt's next. `images` are the embeddings of images
    and sound, and which positions have one (`vllm.embeddings`); `None`: the head reads none.
    """

    batch: Any
    states: Sequence[torch.Tensor]
    rejected: torch.Tensor
    following: torch.Tensor
    images: tuple[Sequence[torch.Tensor], torch.Tensor] | None = None

    @classmethod
    def of(cls, arguments: dict[str, Any]) -> "Step":
        """Return the step of these `arguments` of `propose`, by name."""
        batch = arguments["input_batch"]
        slots = batch.idx_mapping
        following = torch.where(
            arguments["num_sampled"] > 0,
            arguments["last_sampled"][slots, 0],
            arguments["next_prefill_tokens"][0, slots],
        )
        states = arguments["aux_hidden_states"] or (arguments["last_hidden_states"],)
        return cls(batch, states, arguments["num_rejected"], following, arguments.get("mm_inputs"))

    @property
    def requests(self) -> list[str]:
        """Ids of the requests, in the order of the batch."""
        ids: list[str] = self.batch.req_ids
        return ids

    @property
    def begins(self) -> list[int]:
        """Position at which each request's part of the step begins, on the host: an upper bound.

        After rejected drafts it is too large, by `overshoot`.
        """
        begins: list[int] = self.batch.num_computed_tokens_np.tolist()
        return begins

    @property
    def ends(self) -> list[int]:
        """Position after each request's last in the step, on the host: an upper bound like `begins`."""
        ends: list[int] = self.batch.seq_lens_cpu_upper_bound[: self.batch.num_reqs].tolist()
        return ends

    @property
    def cut(self) -> int:
        """The number of first requests of the batch whose number of positions the host does not know.

        These verify drafts that vLLM's adaptive verification has cut short. The host knows the sum of their positions;
        only the accelerator knows the number of each. It is 0 if no draft was cut.
        """
        batch = self.batch
        is_whole = int(batch.num_scheduled_tokens.sum()) == batch.num_tokens
        return 0 if is_whole else int((batch.num_draft_tokens_per_req > 0).sum())

    @property
    def multiple(self) -> list[tuple[int, range]]:
        """The place in the batch and the positions in the step, except the last, of each request with several.

        The `cut` requests are left out.
        """
        starts = self.batch.query_start_loc_np.tolist()
        spans = [(place, range(starts[place], starts[place + 1] - 1)) for place in range(self.cut, self.batch.num_reqs)]
        return [(place, rows) for place, rows in spans if rows]

    def overshoot(self, places: Sequence[int], device: torch.device) -> torch.Tensor:
        """Return the excess of the host's `begins` and `ends` for the requests at `places`: [places]."""
        chosen = torch.tensor(places)
        bound = self.batch.seq_lens_cpu_upper_bound[chosen]
        return handed_over(bound, device) - self.batch.seq_lens[handed_over(chosen, device)]

    def last(self) -> torch.Tensor:
        """Return the place in the step of each request's last position that stays: [requests]."""
        places: torch.Tensor = self.batch.query_start_loc[1 : self.batch.num_reqs + 1].long() - 1 - self.rejected
        return places
