"""The adapter's scheduler with one of its ideas switched off, which users cannot: what that idea gains."""

from collections.abc import Sequence
from typing import Any

from specpilot.engine_adapter.evidence.acceptance import Kind, Priors
from specpilot.engine_adapter.vllm.scheduler import SpecPilotScheduler


class WholeBatchScheduler(SpecPilotScheduler):
    """Drafts for all requests of a step that drafts for one: every request takes the drafter's slots."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.steps._planner._joins_all = True  # noqa: SLF001


class NoPrefixScheduler(SpecPilotScheduler):
    """Lets requests begin where all of their kind do, however their prompts begin."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.steps.priors = _PriorsByKind()


class _PriorsByKind(Priors):
    def of(self, kind: Kind, prefixes: Sequence[int] = ()) -> float:
        return super().of(kind)
