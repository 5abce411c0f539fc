"""The tables of step times of a report, in Markdown."""

from collections.abc import Mapping
from typing import Any

from specpilot.bench.gpu_check.step_parts import STOCK, STOCK_HEAD, name_of
from specpilot.bench.gpu_engine.cells import UNIFORM
from specpilot.bench.report.markdown import table

_COLUMNS = (
    "In the tables below, in milliseconds: *step* from one answer to the next; *range* over the cell's measurements; "
    "*host* in calls of the scheduler and the executor; *waiting* for the device; *span* on the device from a step's "
    "first to its last operation; *busy* with at least one kernel; *loop* the fixed loop that probes the speed."
)

_DETAILS = (
    "running", "K", "step", "range", "host", "waiting", "span", "busy", "kernels", "launches", "loop", "graph",
)  # fmt: skip


def step_tables(data: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the lines of the tables of all parts in `data` that timed steps, by the part's name."""
    timed = {part: outcome for part, outcome in data.items() if outcome.get("cells") and "measured" in outcome}
    if not timed:
        return []
    plain = {row["running"]: row for row in timed.get(name_of(STOCK), {}).get("cells", ())}
    page = ["", "## Milliseconds a step", ""]
    page += [
        "Medians over a cell's measurements at the usual speed of the processor. In brackets: tokens per second over"
    ]
    page += ["those of stock vLLM without speculation.", ""]
    columns = [
        (part.removeprefix("steps, "), k, {row["running"]: row for row in outcome["cells"] if _is(row, k)})
        for part, outcome in timed.items()
        for k in sorted({row["ks"][0] if row["ks"] else -1 for row in outcome["cells"] if row["kind"] == UNIFORM})
    ]
    heads = [name if k < 0 else f"{name}, K = {k}" for name, k, _ in columns]
    cells = [
        [running, *(_beside(rows.get(running, {}), plain.get(running, {})) for _, _, rows in columns)]
        for running in sorted({row["running"] for outcome in timed.values() for row in outcome["cells"]})
    ]
    page += [*table(["running", *heads], cells), "", _COLUMNS]
    for part, outcome in timed.items():
        page += _detail(part, outcome)
    return page


def _is(row: Mapping[str, Any], k: int) -> bool:
    return row["kind"] == UNIFORM and (row["ks"][0] if row["ks"] else -1) == k


def _detail(part: str, outcome: Mapping[str, Any]) -> list[str]:
    """Return the table of one engine: times of host and device, mixed K, the processor's speed, graphs."""
    engine = part.removeprefix("steps, ")
    stock = " (stock vLLM)" if engine in {STOCK, STOCK_HEAD} else ""
    page = ["", f"## Where the time goes: {engine}{stock}", ""]
    attention = ", ".join(outcome["attention"]) or "unknown"
    largest = outcome["largest_graph"] or 0
    start = f"started in {outcome['start_s']:.0f} s"
    page += [
        f"Graph mode {outcome['graph_mode']}, largest graph {largest} tokens, attention {attention}; {start}.",
        "",
    ]
    rows = []
    for row in outcome["cells"]:
        ks = ", ".join(str(k) for k in row["ks"]) or "the engine's"
        low, high = row["step_ms_range"] or (None, None)
        name = ks if row["kind"] == UNIFORM else f"{row['kind']} of {ks}"
        figures = [number(row.get(item)) for item in ("host_ms", "waiting_ms", "span_ms", "busy_ms")]
        counts = [number(row.get(item), 0) for item in ("kernels", "launches")]
        mark = "" if row["is_typical"] else " (unusual)"
        times = [number(row["step_ms"]), f"{number(low)} to {number(high)}", *figures]
        rows.append([row["running"], name, *times, *counts, number(row["pace_ms"]) + mark, _graph(row)])
    page += table(_DETAILS, rows)
    if outcome["arrivals"]:
        heads = ("an arrival beside", "K", "step without", "more in three steps", "by offset", "loop")
        known = (_arrival(item) for item in outcome["arrivals"] if item["excess_ms"] is not None)
        page += ["", *table(heads, known)]
    if outcome["start_graphs"]:
        graphs = (
            (
                "any mix" if item["k"] is None else item["k"],
                item["graphs"],
                f"{item['seconds']:.1f}",
                f"{item['mib']:.0f}",
            )
            for item in outcome["start_graphs"]
        )
        page += ["", *table(("FULL graphs of K", "graphs", "seconds", "MiB"), graphs)]
    return page


def _arrival(item: Mapping[str, Any]) -> list[object]:
    low, high = item["excess_ms_quartiles"]
    by_offset = " ".join(number(value, 1) for value in item["by_offset_ms"][:6])
    k = "the engine's" if item["k"] is None else item["k"]
    excess = f"{number(item['excess_ms'])} ({number(low)} to {number(high)})"
    return [item["running"], k, number(item["quiet_ms"]), excess, by_offset, number(item["pace_ms"])]


def _graph(row: Mapping[str, Any]) -> str:
    """Return mode and size of the graph that most of the cell's steps used."""
    if not row.get("graphs"):
        return "-"
    _, _, mode, tokens, _ = max(row["graphs"], key=lambda item: item[-1])
    return f"{mode} {tokens}"


def _beside(row: Mapping[str, Any], without: Mapping[str, Any]) -> str:
    text = number(row.get("step_ms"))
    if row.get("tokens_per_s") and without.get("tokens_per_s"):
        text += f" ({row['tokens_per_s'] / without['tokens_per_s']:.2f})"
    return text


def number(value: float | None, digits: int = 2) -> str:
    """Return a figure as text; unknown is a dash."""
    return "-" if value is None else f"{value:.{digits}f}"
