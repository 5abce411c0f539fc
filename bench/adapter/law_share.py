"""`specpilot bench adapter --law-share N`: what the engine's law adds to the CPU time of a token at K = 0.

The engine's end, and what is measured, is `bench.adapter.law_pieces`.
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from specpilot.bench.adapter.engine_worker import EngineWorker
from specpilot.bench.report.output import say

RUNNING = (1, 8, 32, 256)


def measure(options: Mapping[str, Any], environment: Mapping[str, str], texts: Sequence[str], rounds: int) -> None:
    """Measure with each number of running requests; the last line is one JSON object."""
    figures: dict[str, float] = {}
    adapting = {
        "SPECPILOT_ENGINE_PROBE_RATIO": "0",
        "OMP_NUM_THREADS": "1",  # a second thread would spend CPU time while it waits
    }
    worker = EngineWorker("adapter", {**options, "max_num_seqs": max(RUNNING)}, {**environment, **adapting})
    try:
        for running in RUNNING:
            series = worker.run(texts[:running], 1, law_share=rounds)
            ratios = [by_law / by_table for by_law, by_table in zip(series["adapting"], series["off"], strict=True)]
            low, median, high = statistics.quantiles(ratios, method="inclusive")
            share = statistics.median(series["thread"])
            say(
                f"{running:3d} running, CPU of a token, adapting over off: median {median:.3f}   half {low:.3f} to "
                f"{high:.3f}   {1e6 * statistics.median(series['off']):.0f} us; the adapter's thread {share:.2%}"
            )
            figures |= {f"adapting_over_off_{running}": round(median, 3), f"thread_{running}": round(share, 4)}
    finally:
        worker.close()
    say(json.dumps(figures))
