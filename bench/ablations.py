"""The ideas of the control law that a measurement can switch off, in this process.

Most ideas are constants of the law (`CONSTANTS`). The others are code, which `without` replaces while it is entered.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from specpilot.controller.estimation.pool_cost import PoolCost
from specpilot.controller.law.context import PoolContext
from specpilot.controller.law.control_law import ControlLaw
from specpilot.controller.law.hold_out import HoldOut
from specpilot.controller.law.rows import Rows
from specpilot.controller.tuning import Tuning
from specpilot.policy.bands import row_parts

CONSTANTS: dict[str, dict[str, Any]] = {
    "concurrency": {"answer_ratio": 1.0},
    "pace": {"slowdown_spread_ratio": 1e-4, "shape_spread_ratio": 1e-4},
    "trials": {"trial_rest_s": math.inf, "trial_steps": 0.0},
    "evening": {"even_ratio": 0.0},
    "cold-start": {"cold_ratio": math.inf},
    "ended-traffic": {"gone_s": math.inf, "gone_nats": math.inf},
    "rows-ready": {"urgent_gain_ratio": math.inf},
    "pauses": {"pause_jump": math.inf},
}
LEARNS_FOR_S = 30.0
"""Seconds of traffic from which the cost of steps is learned without `cost-learning`."""


def _by_class() -> Any:
    """Give each class one row for all bands."""
    of = Rows.of

    def without_bands(context: PoolContext) -> Rows:
        classes = tuple(dict.fromkeys(row_parts(name)[0] for name in of(context).names))
        low, high = np.array([context.bounds(name) for name in classes], dtype=np.int64).T
        return Rows(classes, low, high, np.full(len(classes), -1))

    return patch.object(Rows, "of", without_bands)


def _unguarded() -> Any:
    """Change a schedule for every predicted gain at once."""
    decide = ControlLaw.decide

    def at_once(law: ControlLaw, context: PoolContext, *times: float) -> Any:
        policy = replace(context.policy, minimum_gain_ratio=0.0, dwell_s=0.0)
        return decide(law, replace(context, policy=policy), *times)

    return patch.object(ControlLaw, "decide", at_once)


def never_falls_back() -> Any:
    """Keep the control group from judging the law."""
    return patch.object(HoldOut, "_judge", lambda _: None)


def _learned_once() -> Any:
    """Learn the cost of steps from the first traffic, and keep it."""
    learn = PoolCost.learn

    def at_first(cost: PoolCost, *look: Any, is_history: bool = False) -> None:
        if is_history or cost._traffic_s <= LEARNS_FOR_S:  # noqa: SLF001 - an ablation of this class
            learn(cost, *look, is_history=is_history)

    return patch.object(PoolCost, "learn", at_first)


REPLACED: dict[str, Sequence[Callable[[], Any]]] = {
    "bands": (_by_class,),
    "guard": (_unguarded, never_falls_back),
    "cost-learning": (_learned_once,),
}
IDEAS = (*REPLACED, *CONSTANTS)


@contextmanager
def without(*ideas: str) -> Iterator[Tuning]:
    """Switch `ideas` off in this process; yields the law's constants."""
    tuning = Tuning()
    with ExitStack() as stack:
        for idea in ideas:
            tuning = replace(tuning, **CONSTANTS.get(idea, {}))
            for replaced in REPLACED.get(idea, ()):
                stack.enter_context(replaced())
        yield tuning
