"""A measured machine, one H200 with a pair of an 8B model's size: the device's and the host's time of a step. Pure.

Measured on 2026-11-26 (vLLM 0.32, FlashAttention 3, a target of an 8B Llama's shape, a head of four layers, bfloat16):
median milliseconds of steps of fixed batches by K and requests, and the tokens per second of five loads.

    device   4.85 ms + 0.0118 n; 1.05 ms for a pass of the drafter; 0.0115 ms for each draft token up to 200 tokens in
             all, rising to 0.0265 ms from 400 on
    host     2 ms + 0.02 n without drafts, 6 ms + 0.04 n with them; 5 ms more if the target's step has no FULL graph;
             0.75 ms for each prompt that begins

A step takes the larger of both (`plant`). The host of the measured machine ran a third slower for seconds at a time.
With this, the plant is within 19 % of 39 of the 40 measured cells, and within 13 % of 35
(`tests/unit/simulation/test_h200_plant.py`). Its limitations: a request that ends is replaced at once, so one
request alone has no idle time between two replies; prefilled tokens take 0.012 ms each, which was not measured;
attention takes no longer with a longer context.
"""

from bisect import bisect_left
from dataclasses import dataclass, field

from specpilot.engine_adapter.law.graphs import Graphs
from tests.simulation.plant import Work

SLOW_HOST = 1.32
"""The host's slowdown factor while it was slow: the ratio of cells that were measured at both speeds."""

SIZES = (1, 2, 4, *range(8, 256, 8), *range(256, 1025, 16))
FULL, FULL_AND_PIECEWISE = "FULL", "FULL_AND_PIECEWISE"
_MS = 1000.0
_FREE_DRAFTS, _FULL_DRAFTS = 200, 400
"""Draft tokens in a step up to which each has its least time, and from which on its largest."""
_LEAST_DRAFT_MS, _MOST_DRAFT_MS = 0.0115, 0.0265
_PREFILL_MS = 0.012
_DRAFTER_MS, _ROW_MS = 1.05, 0.002
_PIECEWISE_MS, _GRAPHLESS_MS, _GRAPHLESS_TOKEN_MS = 5.0, 6.0, 0.033
_PROMPT_MS = 0.75


def graphs(mode: str = FULL_AND_PIECEWISE, lengths: tuple[int, ...] = (1, 8), largest: int = 512) -> Graphs:
    """Return the graphs of an engine: in mode FULL one for any mix, else FULL ones for these uniform `lengths`."""
    sizes = tuple(size for size in SIZES if size <= largest)
    uniform = {length: tuple(size for size in sizes if size % length == 0) for length in lengths}
    return Graphs(mode, sizes, uniform if mode != FULL else {1: sizes}, sizes)


@dataclass(frozen=True, slots=True)
class H200Plant:
    """The machine with an engine that has these `graphs`."""

    graphs: Graphs = field(default_factory=graphs)
    reads_prompts_apart: bool = True

    def device_s(self, work: Work) -> float:
        """Return the seconds of a step on the GPU."""
        n, drafted = work.decodes, work.verified - work.decodes
        runs, graph = bool(work.slots or work.read), self._graph(work)
        # A slot's time is in its verified draft token's; a slot without a verified token counts by itself.
        tokens = max(drafted, work.slots)
        milliseconds = 4.85 + 0.0118 * n + _drafts_ms(tokens) + _PREFILL_MS * work.prefill
        milliseconds += _DRAFTER_MS * runs + _ROW_MS * work.read
        if graph == "none":
            milliseconds += _GRAPHLESS_TOKEN_MS * (work.verified + work.prefill - max(self.graphs.mixed, default=0))
        return milliseconds / _MS

    def host_s(self, work: Work) -> float:
        """Return the seconds of the host to launch a step."""
        n, graph = work.decodes, self._graph(work)
        drafts = bool(work.slots or work.verified > n or work.read)
        milliseconds = 6.0 + 0.04 * n if drafts else 2.0 + 0.02 * n
        milliseconds += {"full": 0.0, "piecewise": _PIECEWISE_MS, "none": _GRAPHLESS_MS}[graph]
        return (milliseconds + _PROMPT_MS * work.prompts) / _MS

    def _graph(self, work: Work) -> str:
        """Return the mode of the graph of the target's step."""
        n, m, record = work.decodes, work.verified, self.graphs
        if work.is_uniform and n and not work.prefill and _has(record.uniform.get(m // n, ()), m):
            return "full"
        if n and not work.prefill and _has(record.varlen, m):
            return "full"
        if not _has(record.mixed, m + work.prefill):
            return "none"
        return "full" if record.mode == FULL else "piecewise"


def _drafts_ms(tokens: int) -> float:
    """Return the milliseconds of `tokens` draft tokens: each takes more as the GPU fills."""
    share = min(1.0, max(0.0, (tokens - _FREE_DRAFTS) / (_FULL_DRAFTS - _FREE_DRAFTS)))
    return tokens * (_LEAST_DRAFT_MS + share * (_MOST_DRAFT_MS - _LEAST_DRAFT_MS))


def _has(sizes: tuple[int, ...], tokens: int) -> bool:
    return bisect_left(sizes, tokens) < len(sizes)
