"""The plan of one step, as the scheduler hands it to the workers."""

from dataclasses import dataclass

PLAN = "specpilot_plan"
"""The attribute of a step's `SchedulerOutput` that holds its `StepPlan`, for the workers."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The drafter's work after one step. Requests are named by id.

    `width`: the positions that the drafter prepares for each request in its batch, the largest K; 0 means no drafts.
    `slots`: `width` times the number of requests in the drafter's batch.

    `catch_up`: requests whose backlog goes through the drafter first. `left_out`: requests that a drafting step leaves
    out. Each has one position in the step, and this position joins its backlog. The list is empty at width 0, because
    then every request's latest position joins its backlog. `deferred`: requests of a step of width 0 with several
    positions, all of which join the backlog.

    `read`: positions that the drafter reads without drafting from them. These are the backlogs of `catch_up`. At
    width 0 they include, for each request that is not `deferred`, its positions in the step except the last one.
    """

    width: int
    slots: int = 0
    catch_up: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    read: int = 0
    deferred: tuple[str, ...] = ()
