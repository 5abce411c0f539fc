"""What the adapter keeps of one speculator of model runner V2: its backlog, and the plan of the step under way.

The one object that the wrappers (`engine_adapter.vllm.v2.installation`) share. It belongs to the speculator and ends
with it; nothing is hung on vLLM's own objects.
"""

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from specpilot.engine_adapter.plan.step_plan import StepPlan
from specpilot.engine_adapter.vllm.v2.backlog import Backlog


@dataclass(slots=True)
class Steered:
    """A steered speculator's `backlog`; `plan` is the step's, `None` where another scheduler made the step."""

    backlog: Backlog
    plan: StepPlan | None = None


_OF: WeakKeyDictionary[Any, Steered] = WeakKeyDictionary()


def attach(speculator: Any, steered: Steered) -> None:
    """Keep `steered` for as long as vLLM's `speculator` lives."""
    _OF[speculator] = steered


def of_speculator(speculator: Any) -> Steered | None:
    """Return what is kept of a speculator; `None` when it is not steered, or no speculator."""
    return _OF.get(speculator) if speculator is not None else None
