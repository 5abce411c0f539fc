"""Step times of one engine: by requests and K, with K mixed in one batch, and around a request that arrives.

In order of value, for jobs that are cut short: every cell once, arrivals, every cell again; then once more the cells
that were measured at an unusual speed of the processor, or whose measurements disagree; last the device's own time
under the profiler. The job may stop after any measurement, and reports all figures until then.
"""

import gc
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from specpilot.bench.gpu_engine.arrival_cost import Arrivals, excess
from specpilot.bench.gpu_engine.cells import RANDOM, Cell, disputed, untypical
from specpilot.bench.gpu_engine.device_time import Profiled, Spans
from specpilot.bench.gpu_engine.engine import Engine
from specpilot.bench.gpu_engine.host_clock import HostClock, HostStep
from specpilot.bench.gpu_engine.pace import probe_ms

SETTLED_AFTER = 3
"""Unmeasured steps after all requests have begun: requests without drafts so far catch up in them."""


class StepJob:
    """Measures one engine's steps; `emit` gets the whole outcome so far after each measurement."""

    def __init__(self, engine: Engine, job: dict[str, Any], emit: Callable[[dict[str, Any]], None]) -> None:
        self._engine = engine
        self._job = job
        self._emit = emit
        self._spans = Spans(engine.core)
        self._clock = HostClock(engine.core)  # after the events, whose cost is the host's too
        self._rng = random.Random(5)  # noqa: S311 - a reproducible order
        self._measured: list[dict[str, Any]] = []
        self._arrivals: list[dict[str, Any]] = []
        self._device: list[dict[str, Any]] = []
        self._begun = time.monotonic()

    def run(self) -> dict[str, Any]:
        """Measure until all is measured or the job's time is over; return the outcome."""
        gc.collect()
        gc.freeze()  # collections between cells then skip the objects of vLLM and the model
        for measure in self._measurements():
            if self._is_over():
                return self.outcome("stopped by the time that was left")
            measure()
            self._emit(self.outcome("under way"))
        return self.outcome(None)

    def _measurements(self) -> Iterator[Callable[[], None]]:
        job = self._job
        cells = [_cell(item) for item in job["cells"]]
        for _ in range(job["rounds"]):
            self._rng.shuffle(cells)
            yield from (partial(self._measure, cell) for cell in cells)
            yield from (partial(self._arrive, item) for item in job["arrivals"])
        for place in sorted({*untypical(self._measured), *disputed(self._measured)}):
            yield partial(self._measure, _cell(self._measured[place]["cell"]), is_again=True)
        yield from (partial(self._profile, cell) for cell in cells if job["profiled_steps"])

    def outcome(self, stopped: str | None) -> dict[str, Any]:
        """Return the figures so far."""
        return {
            "measured": [*self._measured],
            "arrivals": [*self._arrivals],
            "device": [*self._device],
            "stopped": stopped,
            "measuring_s": time.monotonic() - self._begun,
        }

    def _is_over(self) -> bool:
        until, timed_s = self._job.get("until"), self._job.get("timed_s")
        is_late = until is not None and time.monotonic() > until
        return is_late or (timed_s is not None and time.monotonic() - self._begun > timed_s)

    def _measure(self, cell: Cell, **more: Any) -> None:
        steps = _Steps(self._engine, cell, self._job["steps"], self._rng)
        before = probe_ms()
        with graphs_noted(self._engine.runner) as graphs:
            steps.serve(self._job, self._clock, self._spans, graphs)
        after = probe_ms()
        span = self._spans.median_ms(len(steps.times))
        self._measured.append({
            "cell": cell.plain(),
            "pace_ms": (before + after) / 2,
            **steps.figures(),
            "span_ms": span,
            "graphs": [[*key, number] for key, number in graphs.most_common(4)],
            **more,
        })  # fmt: skip

    def _profile(self, cell: Cell) -> None:
        profiled = Profiled(self._job["profiled_steps"])
        steps = _Steps(self._engine, cell, profiled.steps, self._rng, profiled)
        steps.serve(self._job, self._clock, self._spans, Counter())
        self._device.append({"cell": cell.plain(), **steps.profile})

    def _arrive(self, item: dict[str, Any]) -> None:
        engine, job = self._engine, self._job
        prompt = engine.prompt_of(item["prompt_tokens"], job["texts"][0])
        arrivals = Arrivals(item["every"], item["count"], lambda: engine.add([prompt], item["reply_tokens"]))
        if engine.control is not None:
            engine.set_k(item["k"])
        most = 1 + (item["k"] if item["k"] is not None else job["k_max"])
        before = probe_ms()
        gc.collect()
        tokens = min(most * (arrivals.steps + SETTLED_AFTER + 4), job["longest_reply"])
        engine.serve(job["texts"][: item["running"]], tokens, arrivals.on_step(item["running"]))
        after = probe_ms()
        self._arrivals.append({**item, "pace_ms": (before + after) / 2, **excess(arrivals.times, item["every"])})


def _cell(item: dict[str, Any]) -> Cell:
    return Cell(item["kind"], item["running"], tuple(item["ks"]))


class _Steps:
    """The steps of one cell: `times` in seconds, and `host` beside each."""

    def __init__(
        self, engine: Engine, cell: Cell, count: int, rng: random.Random, profiled: Profiled | None = None
    ) -> None:
        self.times: list[float] = []
        self.host: list[HostStep] = []
        self.profile: dict[str, Any] = {}
        self._engine, self._cell, self._count, self._rng, self._profiled = engine, cell, count, rng, profiled
        self._delivered = 0

    def serve(self, job: dict[str, Any], clock: HostClock, spans: Spans, graphs: Counter[Any]) -> None:
        """Let the cell's requests decode until enough steps were timed."""
        cell, engine = self._cell, self._engine
        texts = job["texts"][: cell.running]
        begun: set[str] = set()
        before: dict[str, int] = {}
        settling, latest = 0, time.perf_counter()

        def note(_: int, outputs: list[Any]) -> bool:
            nonlocal latest, settling
            now = time.perf_counter()
            host_step = clock.take()
            sizes = {output.request_id: len(output.outputs[0].token_ids) for output in outputs}
            if len(begun) == len(texts) and outputs:
                settling += 1
                if settling == SETTLED_AFTER:
                    graphs.clear()
                    spans.clear()
                    if self._profiled is not None:
                        self._profiled.begin()
                elif settling > SETTLED_AFTER:
                    self.times.append(now - latest)
                    self.host.append(host_step)
                    self._delivered += sum(size - before.get(name, 0) for name, size in sizes.items())
            begun.update(sizes)
            before.update(sizes)
            is_over = len(self.times) >= self._count
            if is_over and self._profiled is not None and not self.profile:
                self.profile = self._profiled.end()
            if cell.kind == RANDOM and not is_over:
                engine.set_k(self._rng.sample(cell.ks, len(cell.ks)))
            latest = time.perf_counter()
            return not is_over

        if cell.ks:
            engine.set_k(cell.ks)
        gc.collect()
        most = 1 + (job["k_max"] if cell.deepest is None else cell.deepest)
        tokens = min(most * (self._count + SETTLED_AFTER + 6) + 8, job["longest_reply"])
        engine.serve(texts, tokens, note, groups=max(1, len(cell.ks)))

    def figures(self) -> dict[str, Any]:
        """Return medians over the steps, in milliseconds; `None` without a timed step."""
        if not self.times:
            return {"step_ms": None}
        times = self.times
        quartiles = statistics.quantiles(times, n=4) if len(times) > 1 else [times[0]] * 3
        return {
            "step_ms": 1e3 * statistics.median(times),
            "step_ms_quartiles": [1e3 * quartiles[0], 1e3 * quartiles[2]],
            "host_ms": _median_ms([item.host_s for item in self.host]),
            "scheduler_ms": _median_ms([item.scheduler_s for item in self.host]),
            "executor_ms": _median_ms([item.executor_s for item in self.host]),
            "waiting_ms": _median_ms([item.waiting_s for item in self.host]),
            "tokens_per_step": self._delivered / len(times),
            "tokens_per_s": self._delivered / sum(times),
        }


def _median_ms(seconds: Sequence[float]) -> float:
    return 1e3 * statistics.median(seconds)


@contextmanager
def graphs_noted(runner: Any) -> Iterator[Counter[tuple[int, int, str, int]]]:
    """Count the target's steps by requests, positions of the longest, mode of the graph and tokens it is padded to."""
    determine, counts = runner._determine_batch_execution_and_padding, Counter[tuple[int, int, str, int]]()  # noqa: SLF001

    def noting(*args: Any, **kwargs: Any) -> Any:
        decision = determine(*args, **kwargs)
        counts[kwargs["num_reqs"], kwargs["max_num_scheduled_tokens"], decision[0].name, decision[1].num_tokens] += 1
        return decision

    runner._determine_batch_execution_and_padding = noting  # noqa: SLF001
    try:
        yield counts
    finally:
        del runner._determine_batch_execution_and_padding  # noqa: SLF001 - uncovers the class's own


def recorded_graphs(runner: Any) -> dict[str, Any] | None:
    """Return the graphs of the engine's record."""
    from specpilot.engine_adapter.vllm.v1.graph_record import of_runner  # noqa: PLC0415 - imports vLLM
    from specpilot.policy.codec import to_plain  # noqa: PLC0415 - beside vLLM's

    graphs = of_runner(runner)
    return None if graphs is None else to_plain(graphs)


def captured_graphs(engine: Engine) -> list[dict[str, Any]]:
    """Return number, seconds and memory of the FULL graphs, by K.

    `k` is `None` for graphs that serve any mix of K and prompts.
    """
    costs = getattr(getattr(engine.runner, "cudagraph_dispatcher", None), "costs", {})
    return [
        {
            "k": length - 1 if length else None,
            "graphs": item.graphs,
            "seconds": item.seconds,
            "mib": item.memory_bytes / (1 << 20),
        }
        for length, item in sorted(costs.items())
    ]


def memory() -> dict[str, int] | None:
    """Return bytes of the device: in all, free now, and the most that torch had reserved."""
    import torch  # noqa: PLC0415 - the parent must not load it

    if not torch.cuda.is_available():
        return None
    free, total = torch.cuda.mem_get_info()
    return {"total": total, "free": free, "most_reserved": torch.cuda.max_memory_reserved()}


def about(engine: Engine) -> dict[str, Any]:
    """Return the engine's mode of graphs, their record and price, its attention backend and memory."""
    compilation = engine.core.vllm_config.compilation_config
    groups = getattr(engine.runner, "attn_groups", None) or []
    return {
        "graph_mode": getattr(compilation.cudagraph_mode, "name", str(compilation.cudagraph_mode)),
        "largest_graph": compilation.max_cudagraph_capture_size,
        "attention": sorted({item.backend.get_name() for group in groups for item in group}),
        "graphs": recorded_graphs(engine.runner) if engine.control is not None else None,
        "start_graphs": captured_graphs(engine),
        "memory": memory(),
    }
