"""A hypothetical GPU whose steps are padded to captured sizes, and have no CUDA graph beyond the largest."""

from bisect import bisect_left

from specpilot.engine_adapter.law.graphs import Graphs
from tests.simulation.engine import K_MAX

_SIZES = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
_LARGEST_OF_ONE = 256
GRAPHS = Graphs(
    "FULL_AND_PIECEWISE",
    _SIZES,
    {1: tuple(size for size in _SIZES if size <= _LARGEST_OF_ONE), 8: tuple(size for size in _SIZES if size % 8 == 0)},
    _SIZES,
)


def _padded(sizes: tuple[int, ...], tokens: float) -> float | None:
    """Return the captured size to which `tokens` are padded; `None` beyond the largest."""
    at = bisect_left(sizes, tokens)
    return sizes[at] if at < len(sizes) else None


def graph_step_s(n: float, m: float, slots: float, prefill: float, context: float) -> float:
    """Return the step time of a large model on one GPU; a step with m = n or n (1 + K_max) has a FULL graph."""
    tokens, missing_ms = _padded(_SIZES, m + prefill) or m + prefill, 1.5
    if not prefill and m in (n, n * (1 + K_MAX)) and (alike := _padded(GRAPHS.uniform[int(m // n)], m)) is not None:
        tokens, missing_ms = alike, 0.0
    elif m + prefill > _SIZES[-1]:
        missing_ms = 6.0
    drafter = 0.0
    if slots:
        drafted = m - n + slots + prefill
        laid_out = _padded(_SIZES, drafted)
        drafter = 0.9 + 0.008 * (laid_out or drafted) + (0.0 if laid_out else 1.5)
    verify = 0.004 * tokens + 0.03 * max(0.0, tokens - 192)
    return (6.0 + 0.01 * n + verify + 0.0001 * context + drafter) / 1000 + missing_ms / 1000
