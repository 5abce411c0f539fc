"""A scheduler that sets K = 0 for all requests and does nothing else, so that steps run as without speculation."""

from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler

from specpilot.engine_adapter.plan.step_plan import PLAN, StepPlan


class BareScheduler(Scheduler):
    """vLLM's synchronous scheduler, which never asks for a draft."""

    plans_drafts = True

    def _update_after_schedule(self, scheduler_output: Any) -> None:
        super()._update_after_schedule(scheduler_output)
        scheduler_output.num_spec_tokens_to_schedule = 0
        setattr(scheduler_output, PLAN, StepPlan(0))

    def update_draft_token_ids(self, draft_token_ids: Any) -> None:
        """Ignore drafts: for a step without drafts vLLM passes zeros."""
