"""Reads a step as scheduled, for both model runners: its plan, the requests to draft for, and those whose rows end."""

from collections.abc import Collection, Sequence
from typing import Any

from specpilot.engine_adapter.plan.step_plan import PLAN, StepPlan
from specpilot.engine_adapter.vllm.rows import Rows


def plan_of(scheduler_output: Any) -> StepPlan | None:
    """Return the adapter's plan of a step, `None` when another scheduler made it."""
    plan: StepPlan | None = getattr(scheduler_output, PLAN, None)
    return plan


def places_of(batch: Sequence[str], left_out: Collection[str]) -> list[int]:
    """Return the places in the `batch` of the requests that are not `left_out`."""
    out = frozenset(left_out)
    return [place for place, request in enumerate(batch) if request not in out]


def forget_useless(rows: Rows, scheduler_output: Any) -> None:
    """Drop the `rows` of requests that have ended, and of those that the step prefills from the beginning."""
    new, resumed = scheduler_output.scheduled_new_reqs, scheduler_output.scheduled_cached_reqs.resumed_req_ids
    if scheduler_output.finished_req_ids or resumed or new:
        rows.forget([*scheduler_output.finished_req_ids, *resumed, *(request.req_id for request in new)])
