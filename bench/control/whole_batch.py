"""The adapter's scheduler as it would be if every request took the drafter's slots: what leaving some out gains."""

from typing import Any

from specpilot.engine_adapter.vllm.scheduler import SpecPilotScheduler


class WholeBatchScheduler(SpecPilotScheduler):
    """Drafts for all requests of a step that drafts for one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.steps._planner.catch_up.reads_all = True  # noqa: SLF001 - a measurement of one part, which users cannot switch off
