"""The parts that time steps: one engine each, with the adapter in each mode of CUDA graphs, and stock vLLM."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specpilot.bench.gpu_check.check import (
    FAILED,
    LONGEST_REPLY,
    MEASURED,
    NO_CUDA,
    NO_ENGINE,
    SKIPPED,
    Check,
    Line,
    Outcome,
    Part,
    PartError,
    judged,
)
from specpilot.bench.gpu_check.parts import head_of, options_of, steered
from specpilot.bench.gpu_engine.cells import UNIFORM, Cell, cells, mean_k, stock, summaries, untypical
from specpilot.engine_adapter import graph_size
from specpilot.engine_adapter.law.graphs import Graphs
from specpilot.policy.codec import from_plain

DEFAULT, NO_GRAPHS = "default", "none"
GRAPH_MODES = (DEFAULT, "FULL", "FULL_AND_PIECEWISE", "FULL_DECODE_ONLY", "PIECEWISE", NO_GRAPHS)
"""Modes of CUDA graphs; `default` is the product's choice, `none` is without graphs and without a compiler."""
STOCK, STOCK_HEAD = "without speculation", "P-EAGLE at K_max"
"""Stock vLLM, without the adapter: without speculation, and with the head at K_max.

Its graphs are vLLM's own, up to the same size as the adapter's."""

ARRIVAL_PROMPT, ARRIVAL_REPLY, ARRIVAL_EVERY = 24, 4, 12
"""Tokens of an arriving request's prompt, tokens of its reply, and steps between two arrivals."""
BESIDE_ARRIVALS = 31
"""Running requests while others arrive: with one more they fill a graph's size of 32."""

LEAST_AS_RECORDED = 0.9
"""Least share of a cell's steps that use the graph of the record: in some steps a request begins or ends."""

_NEEDS_S = 100.0
"""Least remaining seconds to start an engine and time its steps: half of them are the start."""


def parts(modes: Sequence[str]) -> list[Part]:
    """Return the parts for these modes, the most informative first."""
    adapter = [_part(mode, lambda check, mode=mode: adapter_steps(check, mode)) for mode in modes]  # type: ignore[misc]
    beside = [
        _part(STOCK, lambda check: stock_steps(check, speculates=False)),
        _part(STOCK_HEAD, lambda check: stock_steps(check, speculates=True)),
    ]
    return [*adapter[:1], *beside, *adapter[1:]]


def _part(engine: str, run: Callable[[Check], Outcome]) -> Part:
    return Part(name_of(engine), 480, run, needs_s=_NEEDS_S)


def name_of(engine: str) -> str:
    """Return the name of the part of a mode, or of a stock engine."""
    return f"steps, {engine}"


def adapter_steps(check: Check, mode: str) -> Outcome:
    """Measure step times with the adapter, in one mode of CUDA graphs."""
    reason = _why_not(check, mode)
    if reason is not None:
        return [Line(name_of(mode), SKIPPED, reason)], {}
    running = check.by_device(check.running, [1, 8, 32, 64, 128], [1, 4])
    plan = cells(running, check.ks, check.k_max)
    beside = min(BESIDE_ARRIVALS, check.most_running - 1)
    arrivals = [_arrival(check, beside, k) for k in sorted({0, mean_k(check.k_max)})] if beside else []
    options = steered(check, is_async=check.has_cuda, **_graph_options(check, mode))
    return _timed(check, mode, options, plan, arrivals)


def stock_steps(check: Check, *, speculates: bool) -> Outcome:
    """Measure step times without the adapter."""
    engine = STOCK_HEAD if speculates else STOCK
    if not check.has_engine:
        return [Line(name_of(engine), SKIPPED, NO_ENGINE)], {}
    running = check.by_device(check.running, [1, 8, 32, 64, 128], [1, 4])
    beside = min(BESIDE_ARRIVALS, check.most_running - 1)
    options = options_of(check, **_graph_options(check, DEFAULT if check.has_cuda else NO_GRAPHS))
    if speculates:
        options["speculative_config"] = head_of(check)
    return _timed(check, engine, options, stock(running), [_arrival(check, beside, None)] if beside else [])


def _why_not(check: Check, mode: str) -> str | None:
    if not check.has_engine:
        return NO_ENGINE
    return NO_CUDA if mode != NO_GRAPHS and not check.has_cuda else None


def _graph_options(check: Check, mode: str) -> dict[str, Any]:
    """Return vLLM's options for a mode of CUDA graphs."""
    if mode == NO_GRAPHS:
        return {"enforce_eager": True}
    compilation: dict[str, Any] = {} if mode == DEFAULT else {"cudagraph_mode": mode}
    size = check.capture_size or _product_size(check)
    if size is not None:
        compilation["max_cudagraph_capture_size"] = size
    return {"compilation_config": compilation} if compilation else {}


def _product_size(check: Check) -> int | None:
    """Return the capture size that the adapter sets for such an engine; `None`: vLLM's default."""
    return graph_size.capture_size(check.most_running, check.k_max)


def _arrival(check: Check, running: int, k: int | None) -> dict[str, Any]:
    return {
        "running": running,
        "k": k,
        "every": ARRIVAL_EVERY,
        "count": check.by_device(None, 16, 3),
        "prompt_tokens": ARRIVAL_PROMPT,
        "reply_tokens": ARRIVAL_REPLY,
    }


def _timed(
    check: Check, engine: str, options: Mapping[str, Any], plan: Sequence[Cell], arrivals: Sequence[Mapping[str, Any]]
) -> Outcome:
    name, lines = f"step times, {engine}", list[Line]()
    try:
        outcome = check.engine(
            "steps",
            options,
            name,
            texts=check.texts(check.most_running),
            cells=[cell.plain() for cell in plan],
            arrivals=list(arrivals),
            rounds=check.rounds,
            steps=check.by_device(check.steps, 32, 12),
            profiled_steps=check.profiled_steps if check.has_cuda else 0,
            k_max=check.k_max,
            longest_reply=LONGEST_REPLY,
            timed_s=check.timed_s,
            until=check.until(),
        )
    except PartError as error:
        if not error.report or not error.report.get("measured"):
            raise
        lines.append(Line(name_of(engine), FAILED, f"{error}; the figures until then are kept"))
        outcome = dict(error.report)
    outcome["cells"] = rows = _with_device(summaries(outcome["measured"]), outcome["device"])
    return [*lines, *_lines(engine, outcome, rows, len(plan))], outcome


def _lines(engine: str, outcome: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], cell_count: int) -> list[Line]:
    timed = [row for row in rows if row["step_ms"] is not None]
    text = (
        f"{len(timed)} of {cell_count} cells, {len(outcome['measured'])} measurements; {pace_text(outcome['measured'])}"
    )
    if outcome["stopped"]:
        text += f"; {outcome['stopped']}"
    lines = [judged(f"step times, {engine}", text, is_right=bool(timed) and len(timed) == len(rows))]
    if outcome["graphs"]:
        lines.append(as_recorded(engine, outcome))
    lines += mixed_lines(engine, rows) + arrival_lines(engine, outcome["arrivals"])
    if outcome["memory"]:
        memory = {item: f"{size / (1 << 30):.1f} GiB" for item, size in outcome["memory"].items()}
        text = f"{memory['free']} free of {memory['total']}, at most {memory['most_reserved']} reserved"
        lines.append(Line(f"memory, {engine}", MEASURED, text))
    return lines


def pace_text(measured: Sequence[Mapping[str, Any]]) -> str:
    """Return a text with the processor's speed, and the number of measurements at another speed."""
    paces = [item["pace_ms"] for item in measured]
    if not paces:
        return "there is no measurement"
    text = f"the fixed loop took {statistics.median(paces):.2f} ms ({min(paces):.2f} to {max(paces):.2f})"
    return f"{text}, in {len(untypical(measured))} measurements more than 10 % off"


def mixed_lines(engine: str, rows: Sequence[Mapping[str, Any]]) -> list[Line]:
    """Return lines with batches of mixed K as ratios to the uniform batch that verifies as many tokens."""
    uniform = {(row["running"], row["ks"][0]): row["step_ms"] for row in rows if row["kind"] == UNIFORM and row["ks"]}
    texts = []
    for row in rows:
        if row["kind"] == UNIFORM or not row["step_ms"]:
            continue
        same = uniform.get((row["running"], sum(row["ks"]) // len(row["ks"])))
        if same:
            ks = ", ".join(str(k) for k in row["ks"])
            texts.append(f"{row['running']} with K {row['kind']} of {ks}: {row['step_ms'] / same:.2f}")
    name = f"mixed K over the uniform step of as many tokens, {engine}"
    return [Line(name, MEASURED, "; ".join(texts))] if texts else []


def arrival_lines(engine: str, arrivals: Sequence[Mapping[str, Any]]) -> list[Line]:
    """Return lines with the cost of a request that arrives."""
    rounds: dict[str, list[Mapping[str, Any]]] = {}
    for item in arrivals:
        if item["excess_ms"] is not None:
            at = "" if item["k"] is None else f" at K = {item['k']}"
            name = f"an arrival of {item['prompt_tokens']} tokens, {item['running']} running{at}, {engine}"
            rounds.setdefault(name, []).append(item)
    return [Line(name, MEASURED, "; then ".join(_excess(item) for item in items)) for name, items in rounds.items()]


def _excess(item: Mapping[str, Any]) -> str:
    low, high = item["excess_ms_quartiles"]
    return f"{item['excess_ms']:.2f} ms more ({low:.2f} to {high:.2f}) beside steps of {item['quiet_ms']:.2f} ms"


def as_recorded(engine: str, outcome: Mapping[str, Any]) -> Line:
    """Return the line that compares the steps' graphs with the engine's record."""
    name = f"steps find the graphs of the engine's record, {engine}"
    graphs, wrong = from_plain(Graphs, outcome["graphs"]), []
    rows = [row for row in outcome["cells"] if row["kind"] == UNIFORM]
    for row in rows:
        k = row["ks"][0]
        want = expected(graphs, row["running"], k)
        whole = [item for item in row.get("graphs", []) if list(item[:2]) == [row["running"], 1 + k]]
        right = sum(count for *_, mode, padded, count in whole if (mode, padded) == want)
        if not whole or right < LEAST_AS_RECORDED * sum(item[-1] for item in whole):
            wrong.append(f"{row['running']} at K = {k}: {want} expected, {whole} found")
    return judged(name, "; ".join(wrong) or f"{len(rows)} cells as recorded", is_right=not wrong)


def expected(graphs: Graphs, running: int, k: int) -> tuple[str, int]:
    """Return mode and padded tokens of a step with `running` requests of `k` drafts, by the engine's record."""
    tokens = running * (1 + k)
    for mode, sizes in (
        ("FULL", graphs.uniform.get(1 + k, ())),
        ("FULL", graphs.varlen),
        ("FULL" if graphs.mode == "FULL" else "PIECEWISE", graphs.mixed),
    ):
        fitting = [size for size in sizes if size >= tokens]
        if fitting:
            return mode, min(fitting)
    return "NONE", tokens


def _with_device(rows: list[dict[str, Any]], device: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Add the profiler's figures of its cell to each row."""
    known = {repr(item["cell"]): item for item in device}
    for row in rows:
        cell = {name: row[name] for name in ("kind", "running", "ks")}
        figures = known.get(repr(cell), {})
        row |= {name: figures.get(name) for name in ("busy_ms", "kernels", "launches")}
    return rows
