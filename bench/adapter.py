"""`specpilot bench adapter`: what the adapter costs and gains inside the engine, each arm paired with its alternative.

Engines with and without the adapter run in processes of their own, one at a time, in turns A B A B; every figure is
the median of the ratios of neighbouring turns, with its spread. Beside it stands the ratio of what the arms reach in
the best quarter of their turns: others on the machine only ever slow a turn down, so that one scatters less.

- `k0_vs_no_spec`: decode throughput at K = 0 with the adapter over that of an engine without speculation.
- `k0_vs_no_spec_sync`: the same, over one that also schedules synchronously, as vLLM does on a CPU with speculation.
- `k0_floor_vs_no_spec`: the same with a scheduler that does nothing but not to ask for drafts (`bench.bare_scheduler`):
  no rows kept, nothing planned, nothing counted. What vLLM takes for being able to speculate; no adapter that leaves
  vLLM as it is can be above.
- `constant_k_vs_stock`: decode throughput at K = K_max with the adapter over stock vLLM with the same drafter.
- `width_gain`: decode throughput at K = 1 and 3 with draft width over that without (every step drafts K_max).
- `switch_ms`: from a new schedule's arrival in the engine to the first step that verifies its K, with 8 running, p99.
- `lossless_mismatches`: replies that differ from an engine without speculation, while K changes at random.
"""

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from bench.engine_worker import EngineWorker, prompt_texts
from policy.settings import ProgramSettings, load

PROGRAM = "specpilot bench adapter"
DEMO_MODEL = Path(__file__).resolve().parent.parent / "deploy" / "demo_model"
SCHEDULER = "engine_adapter.scheduler.SpecPilotScheduler"
BARE_SCHEDULER = "bench.bare_scheduler.BareScheduler"


class AdapterBenchSettings(ProgramSettings):
    """Measure the adapter in a real engine, on this machine."""

    model_config = SettingsConfigDict(env_prefix="SPECPILOT_BENCH_ADAPTER_")

    model: Path = Field(default=DEMO_MODEL / "target", description="target model")
    drafter: Path = Field(default=DEMO_MODEL / "peagle", description="P-EAGLE head")
    prompts: Path = Field(default=DEMO_MODEL / "prompts", description="folder with <class>.jsonl")
    k_max: int = Field(default=7, ge=1, description="num_speculative_tokens")
    tokens: int = Field(default=128, ge=16, description="tokens a reply")
    rounds: int = Field(default=15, ge=2, description="turns of each arm")
    replies: int = Field(default=500, ge=0, description="replies compared for losslessness")
    wider: int = Field(default=1, ge=1, description="measure a pair this many times as wide, of untrained weights")


@dataclass(frozen=True, slots=True)
class Arm:
    """A worker at K = `k` for all, `None` where nobody asks it."""

    worker: str
    k: int | None = None

    @property
    def options(self) -> dict[str, Any]:
        """What to ask of the worker."""
        return {"keep_nothing": True} if self.worker == "bare" else {} if self.k is None else {"k": self.k}

    def __str__(self) -> str:
        return self.worker if self.k is None else f"{self.worker} at K={self.k}"


def main(arguments: Sequence[str]) -> None:
    """Run it; the last line is one JSON object."""
    settings = load(AdapterBenchSettings, PROGRAM, arguments)
    with tempfile.TemporaryDirectory() as folder:
        if settings.wider > 1:
            from bench.wider_pair import widen  # noqa: PLC0415 - torch, which only this needs

            settings.model = widen(settings.model, settings.wider, Path(folder) / "target")
            settings.drafter = widen(settings.drafter, settings.wider, Path(folder) / "drafter")
        _measure(settings)


def _measure(settings: AdapterBenchSettings) -> None:
    texts = prompt_texts(settings.prompts, max(32, settings.replies))
    cores = sorted(os.sched_getaffinity(0))
    base = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": str(cores[0])}
    speculative = {
        "speculative_config": {
            "method": "eagle3",
            "model": str(settings.drafter),
            "num_speculative_tokens": settings.k_max,
            "parallel_drafting": True,
        }
    }
    plain: dict[str, Any] = {"model": str(settings.model)}
    adapter = plain | speculative | {"scheduler_cls": SCHEDULER}
    found: dict[str, Any] = {}
    workers = {
        "no speculation": EngineWorker("no speculation", plain, base),
        "no speculation, synchronous": EngineWorker(
            "no speculation, synchronous", plain | {"async_scheduling": False}, base
        ),
        "stock": EngineWorker("stock", plain | speculative, base),
        "adapter": EngineWorker("adapter", adapter, base),
        "full width": EngineWorker("full width", adapter, base | {"SPECPILOT_ENGINE_DRAFT_WIDTH": "0"}),
        "bare": EngineWorker("bare", adapter | {"scheduler_cls": BARE_SCHEDULER}, base),
    }
    try:
        for running in (1, 8, 32):
            for name, mine, other in (
                ("k0_vs_no_spec", Arm("adapter", k=0), Arm("no speculation")),
                ("k0_floor_vs_no_spec", Arm("bare"), Arm("no speculation")),
                ("k0_vs_no_spec_sync", Arm("adapter", k=0), Arm("no speculation, synchronous")),
                ("constant_k_vs_stock", Arm("adapter", k=settings.k_max), Arm("stock")),
            ):
                found[f"{name}_{running}"] = _ratio(settings, workers, texts[:running], mine, other)
        for k in (1, 3):
            pair = Arm("adapter", k=k), Arm("full width", k=k)
            found[f"width_gain_k{k}_32"] = _ratio(settings, workers, texts[:32], *pair)
        found["switch_ms"] = _switch_ms(workers["adapter"], texts[:8])
    finally:
        for worker in workers.values():
            worker.close()
    if settings.replies:
        exact = {"dtype": "float32"}
        found["lossless_mismatches"] = _mismatches(
            EngineWorker("no speculation", plain | exact, base),
            EngineWorker("adapter", adapter | exact, base),
            texts[: settings.replies],
        )
    _say(json.dumps(found))


def _ratio(
    settings: AdapterBenchSettings, workers: dict[str, EngineWorker], texts: Sequence[str], mine: Arm, other: Arm
) -> float:
    """Return the median ratio of the throughputs of `mine` and `other`, of neighbouring turns in mirrored order."""
    rates: dict[Arm, list[float]] = {mine: [], other: []}
    for turn in range(settings.rounds + 1):
        for arm in (mine, other) if turn % 2 else (other, mine):
            rate = workers[arm.worker].run(texts, settings.tokens, **arm.options)["decode_rate"]
            if turn:  # the first turn warms both up
                rates[arm].append(rate)
    ratios = [a / b for a, b in zip(rates[mine], rates[other], strict=True)]
    low, median, high = statistics.quantiles(ratios, method="inclusive")
    best, other_best = (statistics.quantiles(rates[arm], method="inclusive")[2] for arm in (mine, other))
    _say(
        f"{len(texts):2d} running, {f'{mine} / {other}':<44} median {median:.3f}   half {low:.3f} to {high:.3f}   "
        f"all {min(ratios):.3f} to {max(ratios):.3f}   best quarters {best / other_best:.3f}"
    )
    return round(median, 3)


def _switch_ms(adapter: EngineWorker, texts: Sequence[str]) -> float:
    """Return the 99th percentile of the time that a change of K takes, in milliseconds."""
    times = sorted(1e3 * item for item in adapter.run(texts, 1024, switches=200)["switch_s"])
    p99: float = round(times[int(0.99 * len(times))], 1)
    _say(f"{len(times)} changes of K with {len(texts)} running: median {statistics.median(times):.1f} ms, p99 {p99} ms")
    return p99


def _mismatches(plain: EngineWorker, adapter: EngineWorker, texts: Sequence[str]) -> int:
    """Return how many of the replies differ, 32 at a time, K changing at random every few steps in the second."""
    count = 0
    try:
        for begin in range(0, len(texts), 32):
            batch = texts[begin : begin + 32]
            expected = plain.run(batch, 96, ids=True)["ids"]
            got = adapter.run(batch, 96, ids=True, thrash_seed=begin)["ids"]
            count += sum(a != b for a, b in zip(expected, got, strict=True))
            if sys.stdout.isatty():
                _say(f"\rlossless: {begin + len(batch)} replies compared, {count} differ", end="")
    finally:
        plain.close()
        adapter.close()
    _say(f"\rlossless: {len(texts)} replies compared, {count} differ")
    return count


def _say(text: str, end: str = "\n") -> None:
    sys.stdout.write(text + end)
    sys.stdout.flush()
