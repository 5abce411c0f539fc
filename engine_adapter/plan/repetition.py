"""Steps that repeat a planned one: the same requests decode, and nothing is drafted. Pure.

With K = 0 for all requests most steps are such repetitions. They are not planned: each has the plan of the first, and
one more position of each request joins its backlog.
"""

from typing import Any

from specpilot.engine_adapter.plan.scheduled_step import ScheduledStep
from specpilot.engine_adapter.plan.step_plan import StepPlan


class Repetition:
    """A planned step, and the number of further steps that may repeat it. The first value repeats no step.

    `unsettled`: the number of steps that have repeated it and whose positions are not in the requests' backlogs yet.
    """

    def __init__(self) -> None:
        self.step = ScheduledStep({})
        self.plan = StepPlan(0)
        self.unsettled = 0
        self._repeats_left = 0

    def start(self, step: ScheduledStep, plan: StepPlan, most: int) -> None:
        """Let at most `most` further steps repeat this one."""
        self.step, self.plan, self._repeats_left = step, plan, most

    def stop(self) -> None:
        """Let no further step repeat the present one."""
        self._repeats_left = 0

    def is_repeated_by(self, output: Any) -> bool:
        """Whether a step that vLLM scheduled repeats the present one: the same tokens of the same requests."""
        return bool(
            self._repeats_left
            and output.num_scheduled_tokens == self.step.tokens
            and not output.finished_req_ids
            and not output.scheduled_new_reqs
        )

    def repeat(self) -> None:
        """Count a step that repeats the present one."""
        self._repeats_left -= 1
        self.unsettled += 1

    def settle(self) -> int:
        """Return the number of unsettled steps, and count them as settled."""
        count, self.unsettled = self.unsettled, 0
        return count
