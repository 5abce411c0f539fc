"""Measures one cell: sets K, plays the load, and reads counters and processes before and after."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from specpilot.bench.data.conversation import Conversation
from specpilot.bench.load.answer import Run
from specpilot.bench.load.arrivals import arrival_times
from specpilot.bench.load.chat_client import ChatClient, Sampling
from specpilot.bench.load.conversations import Work, closed_loop, open_loop
from specpilot.bench.report.gpu_use import GpuUse
from specpilot.bench.report.process_tree import cpu_s_of, memory_of
from specpilot.bench.sweep import endpoint
from specpilot.bench.sweep.figures import Use, figures
from specpilot.bench.sweep.plan import ADAPTIVE, Cell, Load, conversations_in
from specpilot.bench.sweep.spec_decode import SpecDecode
from specpilot.bench.sweep.systems import RunningSystem, has_gpu

WARM_UP = Load(concurrency=2)
"""Load of the warm-up before the first cell of a system."""
LENGTH_EVERY_S = 1.0
"""Seconds between two readings of the acceptance length of a server that exports only a mean of its last steps."""


class CellFailedError(RuntimeError):
    """A cell without a result: no request of it was answered, or its server is gone."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions of all cells. A cell of an adaptive arm begins after `settle_s` of load.

    `work` has the parameters of replies and turns; each cell has its own conversations and their number.
    """

    work: Work
    sampling: Sampling
    slo_ms: Mapping[str, float]
    model: str | None = None
    api_key: str | None = None
    burstiness: float = 1.0
    settle_s: float = 5.0
    price_per_hour: float | None = None


def warm_up(
    system: RunningSystem, cell: Cell, data: Sequence[Conversation], conditions: Conditions, num_prompts: int
) -> None:
    """Measure a small cell and drop it, once after each start: the first requests compile and fill caches.

    Raises as `measure`.
    """
    if not system.is_warm:
        measure(system, cell._replace(load=WARM_UP), data, conditions, conversations_in(WARM_UP, num_prompts, data))
        system.is_warm = True


def measure(
    system: RunningSystem, cell: Cell, data: Sequence[Conversation], conditions: Conditions, count: int
) -> dict[str, Any]:
    """Return the figures of one cell of `count` conversations of `data`.

    Raises `EndpointError` when the server does not answer or had another K than the cell's arm, `CellFailedError` when
    it was lost or answered no request.
    """
    model = conditions.model or endpoint.model_of(system.url, conditions.api_key)
    if cell.arm.k is not None:
        system.steering.set_k(cell.arm.k)
    work = replace(conditions.work, conversations=data, count=count, first=(cell.repetition - 1) * count)
    before = cpu_s_of(system.pid) if system.pid is not None else 0.0
    played = asyncio.run(_play(system, model, cell, work, conditions))
    use = None
    if system.pid is not None:
        cores = (cpu_s_of(system.pid) - before) / played.seconds
        use = Use(cores, memory_of(system.pid), played.gpu.utilization_ratio, played.gpu.memory_bytes)
    errors = [answer.error for answer in played.run.answers if answer.error is not None]
    if errors:
        try:
            endpoint.model_of(system.url, conditions.api_key)
        except endpoint.EndpointError as error:
            raise CellFailedError(f"{system.url} was lost midway: {error}") from error
        if len(errors) == len(played.run.answers):
            raise CellFailedError(f"{system.url} answered no request: {errors[0]}")
    if cell.arm.k is not None:
        system.steering.check(cell.arm.k)
    spec = played.after.since(played.before) if played.before is not None and played.after is not None else None
    result = figures(
        played.run, slo_ms=conditions.slo_ms, spec_decode=spec, use=use, price_per_hour=conditions.price_per_hour
    )
    if spec is None and played.lengths:
        result["spec_decode_acceptance_length"] = fmean(played.lengths)
    return result | {"model_id": model, "num_prompts": len(played.run.answers), "errors": errors[:3]}


@dataclass(frozen=True, slots=True)
class _Played:
    """A run, the server's counters around it, its GPUs' use, and the seconds with its preparation.

    `lengths` are the acceptance lengths that a server without vLLM's counters exported meanwhile.
    """

    run: Run
    before: SpecDecode | None
    after: SpecDecode | None
    lengths: Sequence[float]
    gpu: GpuUse
    seconds: float


async def _play(system: RunningSystem, model: str, cell: Cell, work: Work, conditions: Conditions) -> _Played:
    began = time.perf_counter()
    load = cell.load
    if cell.arm.system == ADAPTIVE and conditions.settle_s > 0:
        async with ChatClient(system.url, model, conditions.sampling, conditions.api_key) as client:
            await _settle(client, load, work, conditions)
    async with ChatClient(system.url, model, conditions.sampling, conditions.api_key) as client:
        before = await asyncio.to_thread(endpoint.counters, system.url)
        async with _lengths(system.url, is_wanted=before is None) as lengths:
            with GpuUse(has_gpu=system.pid is not None and has_gpu()) as gpu:
                run = await _load(client, load, work, conditions)
        after = await asyncio.to_thread(endpoint.counters, system.url)
        return _Played(run, before, after, lengths, gpu, time.perf_counter() - began)


async def _load(client: ChatClient, load: Load, work: Work, conditions: Conditions) -> Run:
    if load.concurrency is not None:
        return await closed_loop(client, work, load.concurrency)
    rate = load.request_rate or 1.0
    arrivals = arrival_times(rate, conditions.burstiness, work.count, random.Random(work.first))  # noqa: S311 - a load
    return await open_loop(client, work, arrivals)


@asynccontextmanager
async def _lengths(url: str, *, is_wanted: bool) -> AsyncIterator[list[float]]:
    """Collect the acceptance lengths that an SGLang server exports during the block.

    It exports a mean of its last steps, so its first value is of the load before.
    """
    lengths: list[float] = []
    if not is_wanted or await asyncio.to_thread(endpoint.acceptance_length, url) is None:
        yield lengths
        return

    async def look() -> None:
        length = await asyncio.to_thread(endpoint.acceptance_length, url)
        lengths.extend([] if length is None else [length])

    async def watch() -> None:
        while True:
            await asyncio.sleep(LENGTH_EVERY_S)
            await look()

    watching = asyncio.create_task(watch())
    try:
        yield lengths
    finally:
        watching.cancel()
    await look()


async def _settle(client: ChatClient, load: Load, work: Work, conditions: Conditions) -> None:
    """Play the cell's own load for some seconds, unmeasured: a cell does not measure the cost of learning."""
    rate = load.request_rate or 1.0
    count = 1_000_000 if load.concurrency is not None else int(rate * conditions.settle_s) + 1
    unmeasured = replace(work, count=count, first=work.first + work.count)
    try:
        async with asyncio.timeout(conditions.settle_s):
            if load.concurrency is not None:
                await closed_loop(client, unmeasured, load.concurrency)
            else:
                arrivals = arrival_times(rate, conditions.burstiness, count, random.Random(0))  # noqa: S311 - a load
                await open_loop(client, unmeasured, arrivals)
    except TimeoutError:
        return
