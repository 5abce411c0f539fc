"""The adapter's scheduler with all requests in the drafter's batch, to measure the gain of the subset."""

from typing import Any

from specpilot.engine_adapter.vllm.scheduler import SpecPilotScheduler


class WholeBatchScheduler(SpecPilotScheduler):
    """Drafts for all requests of a step if it drafts for any."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.steps._planner.catch_up.reads_all = True  # noqa: SLF001 - a measurement of one part, which users cannot switch off
