"""The scenarios of the gateway's bench, their samples, and the figures and tables of these."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from specpilot.bench.gateway.canned_engine import EVENTS
from specpilot.bench.report.markdown import table

DIRECT = "direct"
OURS = "specpilot"
PLAIN = "specpilot, not compiled"
STACK_FLOOR = "uvloop + httptools"


@dataclass(frozen=True, slots=True)
class Scenario:
    """`requests` requests over `connections` connections.

    `kind` is as in `bench.gateway.canned_engine`; `padding` is the bytes added to the prompt.
    """

    name: str
    connections: int
    requests: int
    kind: str = "json"
    padding: int = 100


JSON, PACED = Scenario("json, 32 connections", 32, 6000), Scenario("paced streams, 500", 500, 500, "paced")
SCENARIOS = {
    "json-1": Scenario("json, 1 connection", 1, 1000),
    "json-32": JSON,
    "json-256": Scenario("json, 256 connections", 256, 6000),
    "json-16k": Scenario("json, 32, 16 KB bodies", 32, 3000, padding=16_000),
    "json-1m": Scenario("json, 8, 1 MB bodies", 8, 200, padding=1_000_000),
    "burst": Scenario("streams in a burst, 32", 32, 600, "burst"),
    "paced": PACED,
}


@dataclass(slots=True)
class Sample:
    """One scenario against one target, once. Times in seconds, memory in bytes."""

    seconds: float
    cpu_s: float
    memory: int
    failed: int
    first: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)


def figures(samples: dict[tuple[str, str], list[Sample]], scenario: Scenario, name: str) -> dict[str, float]:
    """Return a target's medians in a scenario: CPU µs a request or event, added ms, requests a second, KB a stream."""
    target, direct = samples[scenario.name, name], samples[scenario.name, DIRECT]

    def added_ms(part: str, share: float) -> float:
        return statistics.median(
            1e3 * (_percentile(getattr(a, part), share) - _percentile(getattr(b, part), share))
            for a, b in zip(target, direct, strict=True)
        )

    return {
        "cpu_us": statistics.median(1e6 * item.cpu_s / max(_units(scenario, item), 1) for item in target),
        "per_s": statistics.median(len(item.first) / item.seconds for item in target),
        "ttft_p50": added_ms("first", 0.5),
        "ttft_p99": added_ms("first", 0.99),
        "itl_p50": added_ms("between", 0.5),
        "itl_p99": added_ms("between", 0.99),
        "kb": statistics.median(item.memory for item in target) / scenario.connections / 1e3,
        "failed": sum(item.failed for item in target),
    }


def markdown(samples: dict[tuple[str, str], list[Sample]], scenarios: Sequence[Scenario], names: Sequence[str]) -> str:
    """Return one table for each scenario."""
    lines = ["Added milliseconds are p50 / p99."]
    for scenario in scenarios:
        unit = "event" if scenario.kind != "json" else "request"
        heads = (
            "",
            f"CPU µs a {unit}",
            "requests/s",
            "first byte, added",
            "between events, added",
            "KB a stream",
            "failed",
        )
        rows = []
        for name in names:
            medians = figures(samples, scenario, name)
            cells = [f"{medians['cpu_us']:.1f}", f"{medians['per_s']:.0f}"]
            cells += [f"{medians[f'{part}_p50']:.2f} / {medians[f'{part}_p99']:.2f}" for part in ("ttft", "itl")]
            rows.append([name, *cells, f"{medians['kb']:.1f}", f"{medians['failed']:.0f}"])
        lines += [f"\n{scenario.name}\n", *table(heads, rows)]
    return "\n".join(lines)


def summary(
    samples: dict[tuple[str, str], list[Sample]], scenarios: Sequence[Scenario], names: Sequence[str]
) -> dict[str, Any]:
    """Return the figures of the last line, for the played scenarios."""
    peers = [name for name in names if name not in (DIRECT, STACK_FLOOR) and not name.startswith(OURS)]
    result: dict[str, Any] = {}
    for title, scenario in (("json", JSON), ("sse", PACED)):
        if scenario in scenarios:
            cpu_us = {name: figures(samples, scenario, name)["cpu_us"] for name in names}
            if peers:
                best = min(cpu_us[peer] for peer in peers)
                for kind, name in (("cpu", OURS), ("stack_floor", STACK_FLOOR)):
                    result[f"{title}_{kind}_vs_best_peer"] = round(cpu_us[name] / best, 3)
            if PLAIN in names and scenario is JSON:
                result["json_cpu_vs_not_compiled"] = round(cpu_us[OURS] / cpu_us[PLAIN], 3)
    if PACED in scenarios:
        medians = figures(samples, PACED, OURS)
        result["added_ttft_ms_p99"] = round(medians["ttft_p99"], 2)
        result["added_itl_ms_p99"] = round(medians["itl_p99"], 2)
        result["kb_per_stream"] = round(medians["kb"], 1)
    return result | {"peers": peers}


def _percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def _units(scenario: Scenario, sample: Sample) -> int:
    return len(sample.first) * (EVENTS if scenario.kind != "json" else 1)
