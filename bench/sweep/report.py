"""The report of a sweep: sections of text and tables, laid out as Markdown and as one HTML page with plots."""

import html
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from specpilot.bench.report.markdown import table
from specpilot.bench.sweep.plan import ADAPTIVE, EAGLE_3, NO_SPECULATION, P_EAGLE
from specpilot.bench.sweep.results import RATE, ArmKey, Results, Spread, load_title

LATENCIES = ("ttft", "tpot", "itl", "e2el")
UNKNOWN = "-"
SHOWN_ROWS = 24
"""Most rows of a table that is printed at the end of a sweep; longer ones are in the files."""
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a}"
    "table{border-collapse:collapse;margin:1rem 0}"
    "td,th{padding:.2rem .7rem;border-bottom:1px solid #ddd;text-align:right}"
    "td:first-child,th:first-child{text-align:left}svg{max-width:100%;height:auto}"
)


class Section(NamedTuple):
    """A heading, a paragraph, an optional table (its first row is the header), an optional name of a plot."""

    title: str
    text: str
    table: Sequence[Sequence[str]] = ()
    plot: str | None = None


def sections(results: Results) -> list[Section]:
    """Return the sections of the report in order; those without measurements are left out."""
    content = [_overview(results)]
    content += [_throughput(results, data_set) for data_set in results.data_sets]
    content += [*_speed_up(results), *_heads(results), *_acceptance(results), *_adaptive(results)]
    content += [_latency(results), *_resources(results), *_failures(results)]
    return content


def markdown(content: Sequence[Section]) -> str:
    """Return the sections as Markdown; it links the plots' SVG files."""
    parts = ["# Speculation sweep"]
    for section in content:
        parts += [f"## {section.title}", section.text]
        if section.table:
            parts.append("\n".join(table(section.table[0], section.table[1:])))
        if section.plot:
            parts.append(f"![{section.title}]({section.plot}.svg)")
    return "\n\n".join(parts) + "\n"


def page(content: Sequence[Section], plots: Mapping[str, str]) -> str:
    """Return one self-contained HTML page; `plots` are SVG texts by name."""
    parts = ["<h1>Speculation sweep</h1>"]
    for section in content:
        parts += [f"<h2>{html.escape(section.title)}</h2>", f"<p>{html.escape(section.text)}</p>"]
        if section.table:
            header, *rows = section.table
            parts.append("<table><tr>" + "".join(f"<th>{html.escape(cell)}</th>" for cell in header) + "</tr>")
            parts += ["<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows]
            parts.append("</table>")
        if section.plot is not None and section.plot in plots:
            parts.append(plots[section.plot])
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Speculation sweep</title>'
        f"<style>{_STYLE}</style></head><body>\n{body}\n</body></html>\n"
    )


def write(cells: Sequence[Mapping[str, Any]], folder: Path) -> str:
    """Write `report.md`, `report.html` and the plots; return the Markdown without long tables."""
    from specpilot.bench.sweep import plots  # noqa: PLC0415 - matplotlib takes a second, and is not needed to measure

    results = Results(cells)
    content = sections(results)
    drawn = plots.draw(results)
    for name, svg in drawn.items():
        (folder / f"{name}.svg").write_text(svg)
    content = [section if section.plot in drawn else section._replace(plot=None) for section in content]
    (folder / "report.md").write_text(markdown(content))
    (folder / "report.html").write_text(page(content, drawn))
    return markdown([section for section in content if len(section.table) <= SHOWN_ROWS])


def _overview(results: Results) -> Section:
    models = ", ".join(sorted({str(cell["model_id"]) for cell in results.cells}))
    count = len(results.repetitions)
    text = (
        f"Model {models}; {len(results.cells)} cells in {count} repetition{'s' if count > 1 else ''}. "
        "Figures are medians over the repetitions, with their range. A ratio is the median of the ratios within each "
        "repetition, in which both arms ran within minutes. Definitions and names are those of vllm bench serve."
    )
    return Section("Measurements", text)


def _table(results: Results, arms: Sequence[ArmKey], of: Callable[[ArmKey, str], str]) -> list[list[str]]:
    rows = [["arm", *map(load_title, results.loads)]]
    return rows + [[arm.name, *(of(arm, load) for load in results.loads)] for arm in arms]


def _throughput(results: Results, data_set: str) -> Section:
    def cell(arm: ArmKey, load: str) -> str:
        return _ranged(results.figure(arm.name, data_set, load, RATE), "{:,.0f}")

    return Section(
        f"Output tokens per second: {data_set}", "All requests together.", _table(results, results.arms, cell)
    )


def _speed_up(results: Results) -> list[Section]:
    if not results.arms_of(NO_SPECULATION):
        return []
    tables = []
    others = [arm for arm in results.arms if arm.system != NO_SPECULATION]
    for data_set in results.data_sets:

        def cell(arm: ArmKey, load: str, data_set: str = data_set) -> str:
            return _ranged(results.ratio(arm.name, NO_SPECULATION, data_set, load), "{:.2f}")

        text = "Output tokens per second over those without speculation. Dotted in the plot: adaptive K."
        tables.append(Section(f"Speed-up: {data_set}", text, _table(results, others, cell), f"speed-up-{data_set}"))
    return tables


def _heads(results: Results) -> list[Section]:
    """Compare P-EAGLE with EAGLE-3 at each K and at their best K, and adaptive K with the best K of EAGLE-3."""
    parallel, sequential, adaptive = (results.arms_of(system) for system in (P_EAGLE, EAGLE_3, ADAPTIVE))
    if not sequential or not (parallel or adaptive):
        return []
    rows = [["data set, K", *map(load_title, results.loads)]]
    for data_set in results.data_sets:
        for arm in parallel:
            other = next((item for item in sequential if item.k == arm.k), None)
            if other is not None and arm.k is not None:
                ratios = [results.ratio(arm.name, other.name, data_set, load) for load in results.loads]
                rows.append([f"{data_set}, K = {arm.k}", *(_ranged(ratio, "{:.2f}") for ratio in ratios)])
        for arms, title in ((parallel, "each at its best K"), (adaptive, "adaptive over the best K of EAGLE-3")):
            if arms:
                best = [results.over_best(arms, sequential, data_set, load) for load in results.loads]
                rows.append([f"{data_set}, {title}", *(_ranged(ratio, "{:.2f}") for ratio in best)])
    text = "Output tokens per second of P-EAGLE, and of adaptive K, over those of EAGLE-3."
    return [Section("P-EAGLE and adaptive K over EAGLE-3", text, rows)]


def _acceptance(results: Results) -> list[Section]:
    name = "spec_decode_acceptance_length"
    if not any(cell.get(name) for cell in results.cells):
        return []
    text = (
        "Tokens per draft and verification, the bonus token included, over all loads; from vLLM's own counters, or the "
        "mean of SGLang's values for its last steps."
    )
    rows = [["arm", *results.data_sets]]
    for arm in results.arms:
        lengths = [
            [length for load in results.loads if (length := results.figure(arm.name, data_set, load, name))]
            for data_set in results.data_sets
        ]
        if any(lengths):
            cells = [f"{sum(item.median for item in row) / len(row):.2f}" if row else UNKNOWN for row in lengths]
            rows.append([arm.name, *cells])
    return [Section("Acceptance length by K", text, rows, "acceptance")]


def _adaptive(results: Results) -> list[Section]:
    """Report the best K by load, and adaptive K over each static K, the best of EAGLE-3 and the best of P-EAGLE."""
    static = [arm for arm in results.arms if arm.system in (P_EAGLE, NO_SPECULATION)]
    sequential, adaptive = results.arms_of(EAGLE_3), results.arms_of(ADAPTIVE)
    tables = []
    if results.arms_of(P_EAGLE):
        rows = [["data set", *map(load_title, results.loads)]]
        for data_set in results.data_sets:
            best = [results.best(static, data_set, load) for load in results.loads]
            rows.append([data_set, *(_k_of(arm) for arm in best)])
        text = "P-EAGLE's K with the most tokens; 0 is no speculation."
        tables.append(Section("Best static K by load", text, rows, "best-k"))
    if not adaptive or not (static or sequential):
        return tables
    places = [(data, load) for data in results.data_sets for load in results.loads]
    rows = [["adaptive over", *(f"{data}, {load[1:]}" for data, load in places)]]
    others = [arm for arm in results.arms if arm in static or arm in sequential]
    lines = [(arm.name, [arm]) for arm in others]
    lines += [("the best K of EAGLE-3", sequential)] if sequential else []
    lines += [("the best static K", static)] if static else []
    for title, arms in lines:
        ratios = [results.over_best(adaptive, arms, data, load) for data, load in places]
        rows.append([title, *(f"{ratio.median:.2f}" if ratio else UNKNOWN for ratio in ratios)])
    text = (
        "Output tokens per second of adaptive K over those of each static K; the best static K is P-EAGLE's or no "
        "speculation. Traffic is steady within a cell here; the gain of adaptive K under shifting traffic is in the "
        "demo and control measurements."
    )
    return [*tables, Section("Adaptive K", text, rows, "adaptive")]


def _latency(results: Results) -> Section:
    header = ["arm, data set, load", *(f"{name.upper()} p50 / p95 / p99" for name in LATENCIES)]
    rows = [header]
    for data_set in results.data_sets:
        for load in results.loads:
            for arm in results.arms:
                cells = []
                for name in LATENCIES:
                    figures = [results.figure(arm.name, data_set, load, f"p{p}_{name}_ms") for p in (50, 95, 99)]
                    cells.append(" / ".join(f"{item.median:.1f}" if item else UNKNOWN for item in figures))
                if any(cell != " / ".join([UNKNOWN] * 3) for cell in cells):
                    rows.append([f"{arm.name}, {data_set}, {load_title(load)}", *cells])
    return Section("Latency in ms", "Medians of the repetitions' percentiles.", rows)


def _resources(results: Results) -> list[Section]:
    columns = (
        ("request_goodput", "good requests a second", "{:.2f}"),
        ("output_throughput_per_request", "tokens per second of a request", "{:.0f}"),
        ("cpu_cores", "cores", "{:.2f}"),
        ("memory_mib", "memory, MiB", "{:,.0f}"),
        ("gpu_utilization_ratio", "GPU busy", "{:.2f}"),
        ("gpu_memory_mib", "GPU memory, MiB", "{:,.0f}"),
        ("output_tokens_per_dollar", "tokens per dollar", "{:,.0f}"),
    )
    known = [column for column in columns if any(cell.get(column[0]) is not None for cell in results.cells)]
    if not known:
        return []
    rows = [["arm, data set, load", *(title for _, title, _ in known)]]
    for data_set in results.data_sets:
        for load in results.loads:
            for arm in results.arms:
                if results.figure(arm.name, data_set, load, RATE) is not None:
                    cells = [_plain(results.figure(arm.name, data_set, load, name), text) for name, _, text in known]
                    rows.append([f"{arm.name}, {data_set}, {load_title(load)}", *cells])
    return [Section("Goodput, use and cost", "Cores and memory are of all processes of the arm.", rows)]


def _failures(results: Results) -> list[Section]:
    failed = [cell for cell in results.cells if cell["failed"]]
    if not failed:
        return []
    rows = [["cell", "failed", "of", "first error"]]
    rows += [[cell["label"], str(cell["failed"]), str(cell["num_prompts"]), cell["errors"][0]] for cell in failed]
    return [Section("Failed requests", "Their tokens and times are in no other figure.", rows)]


def _k_of(arm: ArmKey | None) -> str:
    return UNKNOWN if arm is None else str(arm.k if arm.k is not None else 0)


def _plain(spread: Spread | None, text: str) -> str:
    return text.format(spread.median) if spread is not None else UNKNOWN


def _ranged(spread: Spread | None, text: str) -> str:
    if spread is None:
        return UNKNOWN
    if spread.repetitions == 1:
        return text.format(spread.median)
    return f"{text.format(spread.median)} ({text.format(spread.low)} to {text.format(spread.high)})"
