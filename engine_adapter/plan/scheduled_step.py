"""The record of a step of vLLM between its scheduling and its end, as the planner and the meter need it. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from specpilot.engine_adapter.evidence.meter import Cohort, Draft, Outcome, StepShape
from specpilot.engine_adapter.plan.draft_state import DraftState
from specpilot.engine_adapter.plan.step_plan import StepPlan


class ScheduledDraft(NamedTuple):
    """The scheduled K of a draft, the band by which it was chosen, and whether the request had no verified draft."""

    chosen_k: int
    band: int
    is_unprobed: bool


@dataclass(slots=True)
class ScheduledStep:
    """A step as it was scheduled; steps that repeat it are the same object.

    After the step: `decoding` are the requests that decode in the next one, `prefilling` those that go on prefilling.

    In the step, by request: `tokens`, the number that vLLM scheduled; of those that decode `plain`, the cohort of each
    without a draft to verify, `drafts`, the drafts to verify, and `refused`, those whose draft the grammar cut short
    (the value is the draft's `is_unprobed`). `verified` and `prefill` are the tokens of the requests that decode and
    that prefill, `lengths` the different numbers of tokens of a request that decodes.

    Before the step: `longest` is the length of its longest sequence, `context` the total length of all, `draft_context`
    the sum of it over the draft tokens to verify.

    `shape`: its work, once the drafts after it are planned.
    """

    tokens: Mapping[str, int]
    decoding: list[DraftState] = field(default_factory=list)
    prefilling: list[DraftState] = field(default_factory=list)
    plain: dict[str, Cohort] = field(default_factory=dict)
    drafts: dict[str, ScheduledDraft] = field(default_factory=dict)
    refused: dict[str, bool] = field(default_factory=dict)
    verified: int = 0
    prefill: int = 0
    lengths: set[int] = field(default_factory=set)
    longest: int = 0
    context: int = 0
    draft_context: int = 0
    shape: StepShape = StepShape(0, 0, 0)  # noqa: RUF009 - frozen

    def follow(self, plan: StepPlan, passes: int) -> None:
        """Set the shape of the step, whose drafter follows `plan` with so many passes after its first one."""
        self.shape = StepShape(
            decodes=len(self.plain) + len(self.drafts),
            verified=self.verified,
            slots=plan.slots,
            prefill=self.prefill,
            read=plan.read,
            is_uniform=len(self.lengths) <= 1,
            draft_context=self.draft_context,
            passes=passes,
        )

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
