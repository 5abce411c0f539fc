"""Figures of speculation from two readings of vLLM's own counters. Pure.

`acceptance_length` is `1 + accepted / drafts`, the bonus token included; a position's rate is the share of drafts whose
token there was accepted (unconditional, like vLLM and its benchmark client). Without drafts, as at K = 0, both are
unknown.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class SpecDecode:
    """vLLM's counters: drafts, tokens drafted and accepted, and accepted at each position from 0."""

    drafts: float = 0.0
    draft_tokens: float = 0.0
    accepted_tokens: float = 0.0
    accepted_by_position: Mapping[int, float] = field(default_factory=dict)

    def since(self, before: "SpecDecode") -> "SpecDecode":
        """Return the counts since `before`."""
        positions = {
            position: count - before.accepted_by_position.get(position, 0.0)
            for position, count in self.accepted_by_position.items()
        }
        return SpecDecode(
            self.drafts - before.drafts,
            self.draft_tokens - before.draft_tokens,
            self.accepted_tokens - before.accepted_tokens,
            positions,
        )

    def figures(self) -> dict[str, Any]:
        """Return the figures with the names of `vllm bench serve`; empty without drafts."""
        if self.drafts <= 0 or self.draft_tokens <= 0:
            return {}
        return {
            "spec_decode_acceptance_rate": 100 * self.accepted_tokens / self.draft_tokens,
            "spec_decode_acceptance_length": 1 + self.accepted_tokens / self.drafts,
            "spec_decode_num_drafts": int(self.drafts),
            "spec_decode_draft_tokens": int(self.draft_tokens),
            "spec_decode_accepted_tokens": int(self.accepted_tokens),
            "spec_decode_per_position_acceptance_rates": [
                self.accepted_by_position[position] / self.drafts for position in sorted(self.accepted_by_position)
            ],
        }
