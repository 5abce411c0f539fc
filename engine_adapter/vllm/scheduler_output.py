"""Reads the scheduler's output of a step for both model runners: its plan, and the requests whose rows end."""

from typing import Any

from specpilot.engine_adapter.plan.step_plan import PLAN, StepPlan
from specpilot.engine_adapter.vllm.rows import Rows


def plan_of(scheduler_output: Any) -> StepPlan | None:
    """Return the adapter's plan of a step, `None` when another scheduler made it."""
    plan: StepPlan | None = getattr(scheduler_output, PLAN, None)
    return plan


def forget_useless(rows: Rows, scheduler_output: Any) -> None:
    """Drop the `rows` of requests that have ended, and of those that the step prefills from the beginning."""
    new, resumed = scheduler_output.scheduled_new_reqs, scheduler_output.scheduled_cached_reqs.resumed_req_ids
    if scheduler_output.finished_req_ids or resumed or new:
        rows.forget([*scheduler_output.finished_req_ids, *resumed, *(request.req_id for request in new)])
