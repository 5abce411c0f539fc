"""`specpilot bench adapter`: the adapter's cost and gain inside the engine, each arm paired with its alternative.

Engines with and without the adapter run in processes of their own and alternate (A B A B), some steps each, because the
machine's speed changes within a second by more than the differences to measure. Every figure is the median of the
ratios of neighbouring windows, with their middle half. All engines are launched several times, because one process is a
little faster or slower than the next for its whole life; the report has the medians of the single launches too.

- `k0_vs_no_spec`: decode throughput at K = 0 with the adapter over that of an engine without speculation.
- `k0_vs_no_spec_sync`: the same, over one that also schedules synchronously, as vLLM does on a CPU with speculation.
- `k0_own_share`: the share of a step at K = 0 for the adapter's backlog, plan and evidence, from one engine that runs
  with and without them alternately (`bench.adapter.parts`); printed in microseconds for each of them.
- `constant_k_vs_stock`: decode throughput at K = K_max with the adapter over stock vLLM with the same drafter.
- `constant_k_own_share`: the same share of a step at K_max.
- `width_gain`: decode throughput at K = 1 and 3 with draft width over that without (every step drafts K_max), also in
  one engine.

With `--law-steps` it measures only what the law adds to a step of vLLM's scheduler (`bench.adapter.law_steps`).
With `--law-share` it measures only what the law adds to the CPU time of a token (`bench.adapter.law_share`).
With `--single-k` it measures only K by the law beside each single K (`bench.adapter.single_k`).
"""

import json
import os
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from specpilot.bench.adapter import law_share, law_steps
from specpilot.bench.adapter.engine_worker import LONGEST_REPLY, EngineWorker
from specpilot.bench.adapter.parts import AT_K_0, AT_K_MAX, EVERYTHING, WIDTH, Cost, Pair, cost
from specpilot.bench.adapter.single_k import LOADS, measure_single_k
from specpilot.bench.chosen import chosen
from specpilot.bench.gpu_engine.engine import prompt_texts
from specpilot.bench.report.output import say
from specpilot.demo_model import DEMO_HEAD, DEMO_HEADS, DEMO_MODEL, DEMO_TARGET, MTP_DEMO
from specpilot.engine_adapter import head_config
from specpilot.engine_adapter.errors import InvalidSettingsError
from specpilot.policy.settings import ProgramSettings, fail, load

PROGRAM = "specpilot bench adapter"
SCHEDULER = "specpilot.engine_adapter.vllm.scheduler.SpecPilotScheduler"


class AdapterBenchSettings(ProgramSettings):
    """Measure the adapter in a real engine, on this machine."""

    model_config = SettingsConfigDict(env_prefix="SPECPILOT_BENCH_ADAPTER_")

    model: Path = Field(default=DEMO_TARGET, description="target model")
    drafter: str = Field(
        default=str(DEMO_HEAD),
        description="draft head: a folder; mtp: the model's own; p-eagle, eagle3, dflash: the demo's",
    )
    prompts: Path = Field(default=DEMO_MODEL / "prompts", description="folder with <class>.jsonl")
    k_max: int | None = Field(default=None, ge=1, description="num_speculative_tokens (the head's own, 7; mtp: 3)")
    tokens: int = Field(default=128, ge=64, description="tokens a reply")
    launches: int = Field(default=3, ge=1, description="launches of each engine")
    rounds: int = Field(default=8, ge=2, description="replies of each arm in a launch")
    law_steps: int = Field(
        default=0, ge=0, description="measure only the law's extra work, in so many steps of vLLM's scheduler, no model"
    )
    law_share: int = Field(
        default=0, ge=0, description="measure only the law's share of the CPU time of a token, in so many rounds"
    )
    single_k: int = Field(default=0, ge=0, description="measure only the law beside each single K, in so many rounds")
    loads: str = Field(default=",".join(LOADS), description="the loads of --single-k, comma separated")


@dataclass(frozen=True, slots=True)
class Arm:
    """A worker with K = `k` for all requests; `None`: K is not set."""

    worker: str
    k: int | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The options of the worker's job."""
        return {} if self.k is None else {"k": self.k}

    def __str__(self) -> str:
        return self.worker if self.k is None else f"{self.worker} at K={self.k}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two arms with `running` requests, and the ratios of their neighbouring windows in each launch."""

    name: str
    running: int
    arm: Arm
    other: Arm
    launches: list[list[float]] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The median of all ratios."""
        return statistics.median(chain.from_iterable(self.launches))

    def __str__(self) -> str:
        return f"{self.running:2d} running, {f'{self.arm} / {self.other}':<44}"


def main(arguments: Sequence[str]) -> None:
    """Run it; the last line is one JSON object."""
    settings = load(AdapterBenchSettings, PROGRAM, arguments)
    model, speculative = _speculation(settings)
    k_max = speculative["num_speculative_tokens"]
    if settings.law_steps:
        law_steps.measure(model, speculative, settings.law_steps)
        return
    texts = prompt_texts(settings.prompts, 32)
    cores = sorted(os.sched_getaffinity(0))
    base = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": str(cores[0])}
    plain: dict[str, Any] = {"model": str(model)}
    stock = plain | {"speculative_config": speculative}
    adapter = stock | {"scheduler_cls": SCHEDULER}
    if settings.law_share:
        options, variables = adapter | {"max_num_seqs": max(law_share.RUNNING)}, base | law_share.ENVIRONMENT
        with closing(EngineWorker("adapter", options, variables)) as worker:
            law_share.measure(worker, prompt_texts(settings.prompts, max(law_share.RUNNING)), settings.law_share)
        return
    if settings.single_k:
        loads = chosen(PROGRAM, "--loads", settings.loads, LOADS)
        with closing(EngineWorker("adapter", adapter, base)) as worker:
            measure_single_k(worker, k_max, settings.prompts, loads, settings.single_k)
        return
    engines = {
        "no speculation": (plain, base),
        "no speculation, synchronous": (plain | {"async_scheduling": False}, base),
        "stock": (stock, base),
        "adapter": (adapter, base),
    }
    comparisons = _comparisons(k_max)
    figures: dict[str, Any] = {}
    for launch in range(1, settings.launches + 1):
        with ExitStack() as stack:
            workers = {
                name: stack.enter_context(closing(EngineWorker(name, *options))) for name, options in engines.items()
            }
            for comparison in comparisons:
                _take_turns(settings, workers, texts, comparison)
                say(f"launch {launch} of {settings.launches}: {_summary(comparison)}")
            if launch == settings.launches:
                figures |= _within_one_engine(settings, workers["adapter"], texts, k_max)
    for comparison in comparisons:
        say(_summary(comparison))
        figures[comparison.name] = round(comparison.median, 3)
    say(json.dumps(figures))


def _speculation(settings: AdapterBenchSettings) -> tuple[Path, dict[str, Any]]:
    """Return the target and vLLM's speculative configuration."""
    drafter = DEMO_HEADS.get(settings.drafter, settings.drafter)
    config = Path(drafter) / "config.json"
    if drafter != head_config.MTP and not config.is_file():
        fail(PROGRAM, f"--drafter: no head in {drafter} (there is no config.json)")
    try:
        head = None if drafter == head_config.MTP else head_config.read(json.loads(config.read_text()), drafter)
    except InvalidSettingsError as error:
        fail(PROGRAM, *error.faults)
    model = MTP_DEMO if head is None and settings.model == DEMO_TARGET else settings.model
    return model, head_config.speculative_config(drafter, head, settings.k_max)


def _comparisons(k_max: int) -> list[Comparison]:
    return [
        Comparison(f"{name}_{running}", running, arm, other)
        for running in (1, 8, 32)
        for name, arm, other in (
            ("k0_vs_no_spec", Arm("adapter", k=0), Arm("no speculation")),
            ("k0_vs_no_spec_sync", Arm("adapter", k=0), Arm("no speculation, synchronous")),
            ("constant_k_vs_stock", Arm("adapter", k=k_max), Arm("stock")),
        )
    ]


def _take_turns(
    settings: AdapterBenchSettings, workers: Mapping[str, EngineWorker], texts: Sequence[str], comparison: Comparison
) -> None:
    """Add a launch's windows of a comparison; the arms alternate in which begins, and the first reply warms up."""
    ratios: list[float] = []
    for reply in range(settings.rounds + 1):
        arms = (comparison.arm, comparison.other)[:: 1 if reply % 2 else -1]
        pieces = (
            workers[arm.worker].pieces(texts[: comparison.running], settings.tokens, **arm.options) for arm in arms
        )
        turns = [pair for pair in zip_longest(*pieces) if None not in pair]  # one may need more steps
        if reply:
            ratios += [
                (first.rate / second.rate) if reply % 2 else (second.rate / first.rate) for first, second in turns
            ]
    comparison.launches.append(ratios)


def _summary(comparison: Comparison) -> str:
    low, _, high = statistics.quantiles(chain.from_iterable(comparison.launches), method="inclusive")
    single = " ".join(f"{statistics.median(ratios):.3f}" for ratios in comparison.launches)
    return f"{comparison} median {comparison.median:.3f}   half {low:.3f} to {high:.3f}   by launch {single}"


def _within_one_engine(
    settings: AdapterBenchSettings, adapter: EngineWorker, texts: Sequence[str], k_max: int
) -> dict[str, float]:
    """Measure one engine alone: shares of a step, and draft width."""
    figures: dict[str, float] = {}
    for running in (1, 8, 32):
        some = texts[:running]
        costs = {part: _cost(settings, adapter, some, part, 0) for part in AT_K_0}
        figures[f"k0_own_share_{running}"] = _share(costs[EVERYTHING])
        figures[f"constant_k_own_share_{running}"] = _share(_cost(settings, adapter, some, AT_K_MAX, k_max))
    for k in (1, 3):
        width = _cost(settings, adapter, texts[:32], WIDTH, k)
        say(
            f"32 running, adapter at K={k} / always drafting {k_max}: median {width.ratio.median:.3f} "
            f"({width.ratio.low:.3f} to {width.ratio.high:.3f})"
        )
        figures[f"width_gain_k{k}_32"] = round(width.ratio.median, 3)
    return figures


def _cost(settings: AdapterBenchSettings, adapter: EngineWorker, texts: Sequence[str], part: str, k: int) -> Cost:
    """Return the cost of a part of the adapter in a step at K = `k` for all requests.

    Only steps before the first request ends count, and a step delivers up to 1 + K tokens: so replies are longer here.
    """
    pairs: list[Pair] = []
    most = 2 * settings.launches * settings.rounds
    for turn in range(max(1, min(most, 2 * most // (1 + k)))):
        tokens = min(LONGEST_REPLY, settings.tokens * (1 + k))
        answer = adapter.run("part", prompts=list(texts), tokens=tokens, part=part, seed=turn, k=k)
        pairs += [Pair(*pair) for pair in answer["pairs"]]
    part_cost = cost(pairs)
    say(
        f"{len(texts):2d} running, adapter at K={k}, a step of {part_cost.step:5.0f} us: {part:<31} "
        f"{part_cost.part.median:+5.0f} us ({part_cost.part.low:+.0f} to {part_cost.part.high:+.0f}), "
        f"{part_cost.pairs} pairs"
    )
    return part_cost


def _share(part_cost: Cost) -> float:
    return round(1.0 - part_cost.ratio.median, 3)
