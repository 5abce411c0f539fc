"""How far two clients' figures of one server agree: ratios within each pair, and each client's own spread. Pure."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

FIGURES = ("output_throughput", "mean_tpot_ms", "median_tpot_ms", "mean_ttft_ms", "mean_e2el_ms")
COUNTS = ("completed", "total_input_tokens", "total_output_tokens")

Pair = tuple[Mapping[str, Any], Mapping[str, Any]]
"""A run of the sweep's client and one of `vllm bench serve`, one right after the other."""


def fault(pair: Pair) -> str | None:
    """Return how the work of the two runs differed; `None` when it was the same."""
    sweep, vllm = pair
    for name in COUNTS:
        if sweep[name] != vllm[name]:
            return f"{name} is {sweep[name]} here and {vllm[name]} in vllm bench serve"
    return None


def compared(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Return the ratios, ours over vLLM's, as median and range; and the range of each client over its own median."""
    return {
        "ours_over_vllm": {name: _spread([sweep[name] / vllm[name] for sweep, vllm in pairs]) for name in FIGURES},
        "range_over_median": {
            client: {name: _range([pair[place][name] for pair in pairs]) for name in FIGURES}
            for place, client in enumerate(("ours", "vllm"))
        },
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 4),
        "low": round(min(values), 4),
        "high": round(max(values), 4),
    }


def _range(values: Sequence[float]) -> float:
    return round((max(values) - min(values)) / statistics.median(values), 4)
