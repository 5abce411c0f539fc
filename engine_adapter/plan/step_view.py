"""What a scheduled step of vLLM contains, as the planner and the meter need it. Pure."""

from dataclasses import dataclass, field

from specpilot.engine_adapter.evidence.meter import Cohort, StepShape
from specpilot.engine_adapter.plan.draft_state import DraftState
from specpilot.engine_adapter.plan.scheduled_step import ScheduledDraft
from specpilot.engine_adapter.plan.step_plan import StepPlan


@dataclass(slots=True)
class StepView:
    """The requests of one step.

    After the step: `decoding` are the requests that decode in the next one, `prefilling` those that go on prefilling.

    In the step, by request that decodes: `plain` is the cohort of those without a draft to verify, `drafts` the drafts
    to verify, `refused` those whose draft the grammar cut short (the value is the draft's `is_unprobed`). `verified`
    and `prefill` are the tokens of the requests that decode and that prefill, `lengths` the different numbers of tokens
    of a request that decodes.

    Before the step: `longest` is the length of its longest sequence, `context` the total length of all, `draft_context`
    the sum of it over the draft tokens to verify.
    """

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

    def shape(self, plan: StepPlan, passes: int) -> StepShape:
        """Return the work of the step, whose drafter follows `plan` with so many passes after its first one."""
        return StepShape(
            decodes=len(self.plain) + len(self.drafts),
            verified=self.verified,
            slots=plan.slots,
            prefill=self.prefill,
            read=plan.read,
            is_uniform=len(self.lengths) <= 1,
            draft_context=self.draft_context,
            passes=passes,
        )
