"""The figures of one cell of a sweep, with the names of `vllm bench serve`. Pure.

Definitions as there: TPOT is `(latency - TTFT) / (output tokens - 1)` of a request; throughput is over the whole run,
from the first request to the last answer; percentiles are interpolated linearly. Unknown figures are `None`.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from specpilot.bench.load.answer import Answer, Run
from specpilot.bench.sweep.spec_decode import SpecDecode

PERCENTILES = (50, 95, 99)
GOODPUT_KEYS = ("ttft", "tpot", "e2el")
SECONDS_AN_HOUR = 3600.0
_MS = 1000.0
_MIB = 1 << 20


class Use(NamedTuple):
    """The use of the server's processes during a cell: mean cores, resident bytes, and the same of the GPU."""

    cpu_cores: float
    memory_bytes: int
    gpu_utilization_ratio: float | None = None
    gpu_memory_bytes: int | None = None


def tpot_s(answer: Answer) -> float | None:
    """Return the time per output token after the first, in seconds; `None` for a reply of one token."""
    if answer.output_tokens is None or answer.output_tokens < 2 or answer.latency_s is None or answer.ttft_s is None:  # noqa: PLR2004
        return None
    return (answer.latency_s - answer.ttft_s) / (answer.output_tokens - 1)


def is_good(answer: Answer, slo_ms: Mapping[str, float]) -> bool:
    """Return whether an answer is whole and within every bound of `slo_ms` (milliseconds by `ttft`, `tpot`, `e2el`)."""
    if answer.error is not None:
        return False
    took = {"ttft": answer.ttft_s, "tpot": tpot_s(answer) or 0.0, "e2el": answer.latency_s}
    return all((value := took[name]) is not None and value * _MS <= bound for name, bound in slo_ms.items())


def figures(
    run: Run,
    *,
    slo_ms: Mapping[str, float],
    spec_decode: SpecDecode | None,
    use: Use | None,
    price_per_hour: float | None,
) -> dict[str, Any]:
    """Return the cell's figures by their names; durations are in ms if the name ends so, else in seconds."""
    whole = [answer for answer in run.answers if answer.error is None]
    output = sum(answer.output_tokens or 0 for answer in whole)
    read = sum(answer.input_tokens or 0 for answer in whole)
    rate = output / run.duration_s
    cell: dict[str, Any] = {
        "duration": run.duration_s,
        "completed": len(whole),
        "failed": len(run.answers) - len(whole),
        "total_input_tokens": read,
        "total_output_tokens": output,
        "request_throughput": len(whole) / run.duration_s,
        "request_goodput": sum(is_good(item, slo_ms) for item in run.answers) / run.duration_s if slo_ms else None,
        "output_throughput": rate,
        "total_token_throughput": (read + output) / run.duration_s,
        "output_throughput_per_request": _mean([_pace(answer) for answer in whole]),
    }
    latencies: dict[str, Sequence[float | None]] = {
        "ttft": [answer.ttft_s for answer in whole],
        "tpot": [tpot_s(answer) for answer in whole],
        "itl": [gap for answer in whole for gap in answer.itl_s],
        "e2el": [answer.latency_s for answer in whole],
    }
    for name, values in latencies.items():
        cell |= _summary(name, [value * _MS for value in values if value is not None])
    cell |= spec_decode.figures() if spec_decode is not None else {}
    if use is not None:
        cell["cpu_cores"] = use.cpu_cores
        cell["memory_mib"] = use.memory_bytes / _MIB
        cell["gpu_utilization_ratio"] = use.gpu_utilization_ratio
        cell["gpu_memory_mib"] = use.gpu_memory_bytes / _MIB if use.gpu_memory_bytes is not None else None
    if price_per_hour is not None:
        cell["output_tokens_per_dollar"] = rate * SECONDS_AN_HOUR / price_per_hour
    return cell


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return a percentile of at least one sorted value, interpolated linearly."""
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _pace(answer: Answer) -> float | None:
    """Return the output tokens per second of one request, its TTFT included."""
    return (answer.output_tokens or 0) / answer.latency_s if answer.latency_s else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _summary(name: str, values_ms: Sequence[float]) -> dict[str, float | None]:
    ordered = sorted(values_ms)
    known = bool(ordered)
    summary = {
        f"mean_{name}_ms": statistics.fmean(ordered) if known else None,
        f"median_{name}_ms": percentile(ordered, 50) if known else None,
        f"std_{name}_ms": statistics.pstdev(ordered) if known else None,
    }
    return summary | {
        f"p{percent}_{name}_ms": percentile(ordered, percent) if known else None for percent in PERCENTILES
    }
