"""The adapter's state of one speculator of model runner V2: its backlog, and the plan of the step under way.

Every speculator whose steps are planned by the adapter's scheduler has this state, of whatever kind it is.

The wrappers (`vllm.v2.installation`) share this object. It lives as long as the speculator; vLLM's own objects get no
attributes.
"""

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from specpilot.engine_adapter.plan.step_plan import StepPlan
from specpilot.engine_adapter.vllm.v2.backlog import Backlog


@dataclass(slots=True)
class Steered:
    """A speculator's `backlog`, `None` if it runs in every step; the `plan` of its step, `None` before the first."""

    backlog: Backlog | None = None
    plan: StepPlan | None = None


_OF: WeakKeyDictionary[Any, Steered] = WeakKeyDictionary()


def attach(speculator: Any, steered: Steered) -> None:
    """Keep `steered` for as long as vLLM's `speculator` lives."""
    _OF[speculator] = steered


def of_speculator(speculator: Any) -> Steered | None:
    """Return the state of a speculator; `None` if its steps are not planned, or it is no speculator."""
    return _OF.get(speculator) if speculator is not None else None
