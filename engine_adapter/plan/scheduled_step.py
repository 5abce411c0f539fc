"""The record of a step between its scheduling and its end. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from specpilot.engine_adapter.evidence.meter import Cohort, Draft, Outcome, StepShape


class ScheduledDraft(NamedTuple):
    """The scheduled K of a draft, the band by which it was chosen, and whether the request had no verified draft."""

    scheduled_k: int
    band: int
    is_unprobed: bool


@dataclass(slots=True)
class ScheduledStep:
    """A step as it was scheduled; steps that repeat it are the same object.

    By request: `tokens`, the number that vLLM scheduled; `plain`, the `Cohort` of each decode without a draft to
    verify; `drafts`, the drafts to verify. `refused` has the requests whose draft the grammar cut short; the value is
    the draft's `is_unprobed`.
    """

    tokens: Mapping[str, int]
    shape: StepShape
    plain: dict[str, Cohort] = field(default_factory=dict)
    drafts: dict[str, ScheduledDraft] = field(default_factory=dict)
    refused: dict[str, bool] = field(default_factory=dict)

    def outcome(self, drafts: Mapping[str, Draft], items: Sequence[Any]) -> Outcome:
        """Return the outcome of the step with these verified `drafts`; `items` are its outputs, one per request."""
        outcome = Outcome()
        tokens = outcome.tokens
        for item in items:
            name = item.request_id
            draft = drafts.get(name)
            if draft is not None:
                cohort = Cohort(draft.traffic_class, draft.band)
                outcome.drafts.append(draft)
            elif name in self.plain:
                cohort = self.plain[name]
                outcome.plain[cohort] = outcome.plain.get(cohort, 0) + 1
                if name in self.refused:
                    outcome.refused.append((cohort.band, self.refused[name]))
            else:
                continue
            tokens[cohort] = tokens.get(cohort, 0) + len(item.new_token_ids)
        return outcome


class UnderWay(NamedTuple):
    """A step that has not ended: vLLM's `SchedulerOutput`, its time, the total length of its sequences, its record."""

    output: Any
    scheduled_at: float
    context: int
    step: ScheduledStep
