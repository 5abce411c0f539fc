"""The ideas of the control law that a measurement can switch off, in this process.

Most are constants of the engine's law, or a function that `without` replaces while it is entered.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from specpilot.controller.law.control_group import ControlGroup
from specpilot.engine_adapter.evidence import request_acceptance
from specpilot.engine_adapter.evidence.meter import Draft, Evidence, StepShape
from specpilot.engine_adapter.law import batch_choice, price_fit
from specpilot.engine_adapter.law.price_fit import StepCost
from specpilot.engine_adapter.law.prices import Prices

LEARNED_STEPS = 2000
"""Steps from which the cost of steps is learned without `cost-learning`."""
_ONE_BAND = 4


def never_falls_back() -> Any:
    """Keep the control group from judging the law."""
    return patch.object(ControlGroup, "_test", lambda _: None)


def _learned_once() -> Any:
    """Learn the cost of steps from the first ones, and keep it."""
    note = StepCost.note

    def at_first(step_cost: StepCost, shape: StepShape, seconds: float, context: int) -> None:
        if step_cost.steps < LEARNED_STEPS:
            note(step_cost, shape, seconds, context)

    return patch.object(StepCost, "note", at_first)


def _with_first_drafts() -> Any:
    """Count drafts whose K was chosen before any outcome of their request for its band, like all others."""
    add = Evidence.add_drafts

    def counted(evidence: Evidence, draft: Draft, count: int) -> None:
        add(evidence, draft._replace(is_unprobed=False), count)

    return patch.object(Evidence, "add_drafts", counted)


IDEAS: Mapping[str, Callable[[], Any]] = {
    "bands": lambda: patch.object(request_acceptance, "band_of", lambda _: _ONE_BAND),
    "first-drafts": _with_first_drafts,
    "cold-start": lambda: patch.object(batch_choice, "UNPROBED_RATIO", math.inf),
    "left-out": lambda: patch.object(Prices, "catch_up_s", lambda *_: 0.0),
    "cost-learning": _learned_once,
    "slowdown": lambda: patch.object(price_fit, "SLOWDOWN_SHARE", 0.0),
    "pauses": lambda: patch.object(price_fit, "PAUSE", math.inf),
    "fall-back": never_falls_back,
}


@contextmanager
def without(*ideas: str) -> Iterator[None]:
    """Switch `ideas` off in this process."""
    with ExitStack() as stack:
        for idea in ideas:
            stack.enter_context(IDEAS[idea]())
        yield
