"""Step times of three hypothetical machines, and the times to catch up rows: the truth that a law must learn.

Arguments are running requests `n`, verified tokens `m`, the drafter's slots, prefilled tokens, and tokens of context.
"""

from collections.abc import Callable

StepTime = Callable[[float, float, float, float, float], float]
"""Seconds of a step by its content."""

CatchUpTime = Callable[[float], float]
"""Additional seconds of a step by the number of rows (from 1 on) that its drafter catches up."""

ROW_S = 40e-3 / 1536
"""Seconds of a row that K = 0 left for the catch-up: docs/decisions/0004."""
PASS_S = 1.5e-3
"""Seconds of a pass over such rows, independent of their number (docs/decisions/0004)."""
_FULL_AT = 96
"""Tokens that fill the hypothetical GPU."""


def cpu_step_s(n: float, m: float, slots: float, prefill: float, context: float) -> float:
    """Return the time on the demo pair's two CPU cores: verification costs from the first token on."""
    drafter = 0.6 + 0.08 * slots if slots else 0.0
    return (2.2 + 0.06 * n + 0.1 * (m + prefill) + 0.05 * prefill + 0.0002 * context + drafter) / 1000


def demo_pair_step_s(n: float, m: float, slots: float, prefill: float, context: float) -> float:
    """Return the time on the demo pair's two CPU cores in a whole system, fitted to the cells of a `bench control` run.

    Clients and gateway share the cores, and a step that drafts has a cost for each of its requests, whatever its K.
    """
    drafter = 2.0 + 0.15 * n + 0.065 * slots if slots else 0.0
    return (4.6 + 0.11 * (m + prefill) + 0.05 * prefill + 0.0004 * context + drafter) / 1000


def cpu_catch_up_s(rows: float) -> float:
    """Return the time to catch up there."""
    return PASS_S + ROW_S * rows


def gpu_step_s(n: float, m: float, slots: float, prefill: float, context: float) -> float:
    """Return the time on a GPU: tokens cost nearly nothing until they fill it, then linear; the drafter is small."""
    drafter = 0.9 + 0.012 * slots if slots else 0.0
    tokens = m + prefill
    return (9.0 + 0.02 * n + 0.004 * tokens + 0.06 * max(0.0, tokens - _FULL_AT) + 0.0001 * context + drafter) / 1000


def mostly_verification_s(n: float, m: float, slots: float, prefill: float, context: float) -> float:
    """Return the time of a step of which verifying takes most: what is good for one class makes the other wait."""
    del n, prefill, context
    return 0.010 + 0.00025 * m + (0.001 if slots else 0.0)
