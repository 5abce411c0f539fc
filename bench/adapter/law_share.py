"""`specpilot bench adapter --law-share N`: what the engine's law adds to the CPU time of a token at K = 0.

One real engine with the adapter on one core. In each round a piece of `PIECE_S` CPU seconds runs with K chosen by the
law, and one with K set by a table, as in mode `off`, in random order; a figure is the ratio of the two. K is 0 in both,
without probes, so only the law's own work differs. The law knows the steps of a calibration, with made-up times, and
its drafts are never accepted. An engine in mode `off` learns and exports too, so the second figure is the share of the
adapter's thread in the CPU time of the pieces in which the law chooses.

The exports and the fits of this thread follow the process's CPU time instead of the clock. Otherwise an engine that
shares its cores would seem to spend more on them. Each piece has four exports and one fit.
"""

import json
import random
import statistics
import threading
import time
from collections.abc import Sequence
from typing import Any

from specpilot.bench.adapter.traffic import Traffic
from specpilot.bench.report.output import say
from specpilot.engine_adapter.agent.agent import EXPORT_S
from specpilot.engine_adapter.agent.calibration import STEPS, loads, settings
from specpilot.engine_adapter.evidence.meter import StepShape
from specpilot.engine_adapter.plan.speculation_control import fixed_table
from specpilot.policy.bands import BANDS
from specpilot.policy.names import DEFAULT_CLASS
from specpilot.policy.schedule import FleetAcceptance, Guidance, Schedule

RUNNING = (1, 8, 32, 256)
PIECE_S = 1.0
REPLY_TOKENS = (100, 500)
"""Shortest and longest reply; another one takes its place."""


ENVIRONMENT = {
    "SPECPILOT_ENGINE_PROBE_RATIO": "0",
    "OMP_NUM_THREADS": "1",  # a second thread would spend CPU time while it waits
}


def measure(worker: Any, texts: Sequence[str], rounds: int) -> None:
    """Have the engine of `worker` measure each number of running requests; the last line is one JSON object."""
    figures: dict[str, float] = {}
    for running in RUNNING:
        series = worker.run("law share", texts=texts[:running], rounds=rounds)
        ratios = [by_law / by_table for by_law, by_table in zip(series["adapting"], series["off"], strict=True)]
        low, median, high = statistics.quantiles(ratios, method="inclusive")
        share = statistics.median(series["thread"])
        say(
            f"{running:3d} running, CPU of a token, adapting over off: median {median:.3f}   half {low:.3f} to "
            f"{high:.3f}   {1e6 * statistics.median(series['off']):.0f} us; the adapter's thread {share:.2%}"
        )
        figures |= {f"adapting_over_off_{running}": round(median, 3), f"thread_{running}": round(share, 4)}
    say(json.dumps(figures))


def played(llm: Any, texts: Sequence[str], rounds: int) -> dict[str, list[float]]:
    """The worker's end, with `len(texts)` requests at all times.

    Returns by round the CPU seconds of a token, `adapting` and `off`, and the share of the adapter's `thread`.
    """
    from vllm import SamplingParams  # noqa: PLC0415 - the parent must not load vLLM

    scheduler, rng = llm.llm_engine.engine_core.engine_core.scheduler, random.Random(0)  # noqa: S311 - reproducible
    series: dict[str, list[float]] = {"adapting": [], "off": [], "thread": []}

    def request_of(_: int, begun: int) -> tuple[str, SamplingParams]:
        sampling = SamplingParams(temperature=0.0, max_tokens=rng.randint(*REPLY_TOKENS), ignore_eos=True)
        return texts[begun % len(texts)], sampling

    traffic, exporter = Traffic(llm.llm_engine, [0] * len(texts), request_of), _Exporter(scheduler)
    control = scheduler.control
    guided = Schedule(control.model, control.pool, control.version + 1, time.time(), Guidance(static_k=0))
    control.offer(guided, time.monotonic())
    _know_steps(scheduler)
    for number in range(rounds + 1):
        for arm in rng.sample(("adapting", "off"), 2):
            exporter.begin(adapts=arm == "adapting")
            tokens, began = traffic.tokens, time.process_time()
            while (cpu_s := time.process_time() - began) < PIECE_S:
                traffic.step()
                exporter.tick()
            if number:  # the first round warms up
                series[arm].append(cpu_s / (traffic.tokens - tokens))
                if arm == "adapting":
                    series["thread"].append(exporter.thread_s / cpu_s)
    if any(state.k for state in scheduler.steps.decoding) or not scheduler.law.steps:
        raise RuntimeError("the law did not choose K = 0")
    exporter.close()
    traffic.end()
    return series


def _know_steps(scheduler: Any) -> None:
    """Let the law learn the steps of a calibration, with made-up times, and that no draft is accepted."""
    k_max, law = scheduler.control.k_max, scheduler.law
    for n in loads(scheduler.control.max_running):
        for k, others in settings(n, k_max):
            drafted = (n - n // 2) * k + n // 2 * others
            shape = StepShape(n, n + drafted, n * max(k, others), is_uniform=k == others)
            seconds = 0.004 + 3e-5 * shape.verified + (0.002 + 1e-5 * shape.slots) * (shape.slots > 0)
            law.learn([(shape, seconds, 100 * n)] * STEPS)
    law.acceptance.begin_with(FleetAcceptance(((200.0,) * k_max,) * BANDS, ((0.0,) * k_max,) * BANDS))


class _Exporter:
    """Runs the exports of the agent of `scheduler` in a thread, once in `EXPORT_S` seconds of CPU time."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._agent = scheduler._agent  # noqa: SLF001 - its thread is replaced
        self._agent._stopped.set()  # noqa: SLF001
        self._began_at = time.monotonic()
        self._agent.clock = self
        self._due = threading.Semaphore(0)
        self._next_at = time.process_time()
        self._is_closed = False
        self.thread_s = 0.0  # of the thread's CPU time since `begin`
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def monotonic(self) -> float:
        """Return the time of the exports: from the start on the CPU time has passed."""
        return self._began_at + time.process_time()

    def begin(self, *, adapts: bool) -> None:
        """Begin a piece in which the law chooses K, or a table has it."""
        control = self._scheduler.control
        control.__dict__.pop("table", None)
        if not adapts:
            table = fixed_table({DEFAULT_CLASS: 0})
            control.table = lambda _: table
        self._agent.learning._refreshed_at = float("-inf")  # noqa: SLF001 - the first export of each piece refreshes
        self.thread_s, self._next_at = 0.0, time.process_time() + EXPORT_S / 2

    def tick(self) -> None:
        """Let the thread export if it is due."""
        if time.process_time() >= self._next_at:
            self._next_at += EXPORT_S
            self._due.release()

    def close(self) -> None:
        """End the thread."""
        self._is_closed = True
        self._due.release()
        self._thread.join()

    def _run(self) -> None:
        while self._due.acquire() and not self._is_closed:
            began = time.thread_time()
            self._agent._export_once()  # noqa: SLF001
            self.thread_s += time.thread_time() - began
