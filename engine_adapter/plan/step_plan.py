"""The plan of one step, as the scheduler hands it to the workers."""

from dataclasses import dataclass

PLAN = "specpilot_plan"
"""The attribute of a step's `SchedulerOutput` that holds its `StepPlan`, for the workers."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What the drafter does after one step. Requests are named by id.

    `width`: positions that the drafter lays out for each request that it drafts for, the largest K; 0: it drafts
    nothing. `slots`: these positions, of all requests together.

    `catch_up`: requests whose backlog goes through the drafter first. `left_out`: requests that the drafter runs
    without, in a step that drafts; each has one position in the step, which joins its backlog. A step of width 0 names
    none, because every request's latest position then joins its backlog. `held`: requests of such a step that have
    several positions in it, all of which join the backlog.

    `read`: positions that the drafter reads without drafting from them. These are the backlogs of `catch_up` and, at
    width 0, all positions except the last of each request that is not `held`.
    """

    width: int
    slots: int = 0
    catch_up: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    read: int = 0
    held: tuple[str, ...] = ()
