"""Measures the pair in vLLM itself, and writes the tables into the model card.

Owns: the closed-loop load, the reading of vLLM's own counters, `measurements.json`, the card's tables.
Acceptance length is 1 + accepted / drafts from `vllm:spec_decode_*`. OTPS is output tokens per second with a
fixed number of requests in flight, prefill included; the clock stops when the first slot stays empty.
One engine per (head, K), each in its own process. Throughput only means something as a ratio between rows,
and only when nothing else runs on the machine.

    python -m demo_model.evaluate            # from deploy/, about ten minutes
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .conversation import CLASSES
from .prompts import read_prompts

if TYPE_CHECKING:
    from vllm import LLM

ENGINES = (("none", 0), *(("peagle", k) for k in (1, 3, 5, 7)), *(("eagle3", k) for k in (1, 3, 7)))
CONCURRENCIES = (1, 8, 32)
TEMPERATURES = (0.0, 1.0)
BEGIN, END = "<!-- tables: written by evaluate.py -->", "<!-- end of tables -->"


@dataclass(frozen=True)
class Measurement:
    """One cell; `acceptance_length` is None without speculation."""

    head: str
    k: int
    traffic_class: str
    temperature: float
    concurrency: int
    tokens_per_s: float
    acceptance_length: float | None


def open_engine(folder: Path, head: str, k: int) -> LLM:
    """A vLLM engine on this pair."""
    from vllm import LLM  # noqa: PLC0415 (takes seconds)

    speculation: dict[str, Any] | None = None
    if k:
        speculation = {"method": "eagle3", "model": str(folder / head), "num_speculative_tokens": k}
        if head == "peagle":
            speculation["parallel_drafting"] = True
    return LLM(
        model=str(folder / "target"),
        max_model_len=1024,
        max_num_seqs=32,
        enforce_eager=True,
        seed=0,
        enable_prefix_caching=False,
        disable_log_stats=False,
        speculative_config=speculation,
    )


def counters(engine: LLM) -> tuple[int, int]:
    """(drafts, accepted tokens) since the start."""
    found = {metric.name: getattr(metric, "value", 0) for metric in engine.get_metrics()}
    return found.get("vllm:spec_decode_num_drafts", 0), found.get("vllm:spec_decode_num_accepted_tokens", 0)


def closed_loop(engine: LLM, bodies: list[dict[str, Any]], temperature: float, concurrency: int) -> float:
    """Output tokens per second with `concurrency` requests in flight."""
    from vllm import SamplingParams  # noqa: PLC0415

    tokenizer, core = engine.get_tokenizer(), engine.llm_engine
    prompts = [
        tokenizer.apply_chat_template(body["messages"], add_generation_prompt=True, tokenize=False) for body in bodies
    ]
    waiting = list(enumerate(zip(prompts, bodies, strict=True)))[::-1]
    made: dict[str, int] = {}
    running: set[str] = set()
    started = time.monotonic()
    elapsed, counted = 0.0, 0
    while waiting or running:
        while waiting and len(running) < concurrency:
            index, (prompt, body) = waiting.pop()
            core.add_request(str(index), prompt, SamplingParams(temperature=temperature, max_tokens=body["max_tokens"]))
            running.add(str(index))
        for output in core.step():
            made[output.request_id] = len(output.outputs[0].token_ids)
            if output.finished:
                running.discard(output.request_id)
        if waiting or len(running) == concurrency:
            elapsed, counted = time.monotonic() - started, sum(made.values())
    return counted / elapsed


def measure_engine(folder: Path, head: str, k: int, out: Path) -> None:
    """Every class at every temperature and concurrency; appends lines to `out`."""
    engine = open_engine(folder, head, k)
    closed_loop(engine, read_prompts(folder / "prompts", CLASSES[0])[-8:], 0.0, 8)
    for name in CLASSES:
        bodies = read_prompts(folder / "prompts", name)
        for temperature in TEMPERATURES:
            for concurrency in CONCURRENCIES:
                if temperature and concurrency != CONCURRENCIES[-1]:
                    continue
                before = counters(engine)
                speed = closed_loop(engine, bodies[: {1: 8, 8: 40, 32: 128}[concurrency]], temperature, concurrency)
                drafts, accepted = (b - a for a, b in zip(before, counters(engine), strict=True))
                cell = Measurement(
                    head,
                    k,
                    name,
                    temperature,
                    concurrency,
                    round(speed),
                    round(1 + accepted / drafts, 2) if drafts else None,
                )
                print(cell, flush=True)
                with out.open("a") as file:
                    file.write(json.dumps(asdict(cell)) + "\n")
    engine.llm_engine.engine_core.shutdown()  # at interpreter exit it would hang


def tables(cells: list[Measurement]) -> str:
    """Markdown: acceptance length, then OTPS."""
    by_key = {(c.head, c.k, c.traffic_class, c.temperature, c.concurrency): c for c in cells}
    rows = [key for key in ENGINES if any((c.head, c.k) == key for c in cells)]
    lines = ["Acceptance length as vLLM reports it (32 in flight, 128 held-out prompts per class):", ""]
    lines += [
        "| head | K | " + " | ".join(f"{n}, T={t:.0f}" for t in TEMPERATURES for n in CLASSES) + " |",
        "|---|---|" + "---|" * 6,
    ]
    for head, k in rows[1:]:
        found = [by_key[head, k, name, t, 32].acceptance_length for t in TEMPERATURES for name in CLASSES]
        lines.append(f"| {head} | {k} | " + " | ".join(f"{value:.2f}" for value in found if value) + " |")
    for temperature in TEMPERATURES:
        loads = [n for n in CONCURRENCIES if (*rows[0], CLASSES[0], temperature, n) in by_key]
        lines += ["", f"Output tokens per second, temperature {temperature:.0f} (class, requests in flight):", ""]
        lines += [
            "| head | K | " + " | ".join(f"{n} {c}" for n in CLASSES for c in loads) + " |",
            "|---|---|" + "---|" * (3 * len(loads)),
        ]
        for head, k in rows:
            found = [by_key[head, k, name, temperature, n].tokens_per_s for name in CLASSES for n in loads]
            lines.append(f"| {head} | {k} | " + " | ".join(f"{value:,.0f}" for value in found) + " |")
    return "\n".join(lines)


def write_card(card: Path, text: str) -> None:
    """Replace the text between the two marks."""
    before, rest = card.read_text().split(BEGIN)
    card.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.split(END)[1]}")


def main() -> None:
    """Measure everything, or the engines asked for, and rewrite the card's tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", action="append", help="like peagle:7; all when left out")
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent)
    asked = parser.parse_args()
    out = asked.folder / "measurements.jsonl"
    if not asked.engine:
        out.unlink(missing_ok=True)
    for head, k in ENGINES:
        if asked.engine and f"{head}:{k}" not in asked.engine:
            continue
        child = multiprocessing.get_context("spawn").Process(target=measure_engine, args=(asked.folder, head, k, out))
        child.start()
        child.join()
    latest = {tuple(cell.values())[:5]: Measurement(**cell) for cell in map(json.loads, out.read_text().splitlines())}
    write_card(asked.folder / "README.md", tables(list(latest.values())))


if __name__ == "__main__":
    main()
