"""The background tasks of a serving gateway: probes, followers of engines and keys, certificates, the worker's counts.

All of them, and a first probe of each engine, start before the first request is accepted and end after the last.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

from specpilot.gateway.engines.dns import Resolver
from specpilot.gateway.engines.probe import Probe
from specpilot.gateway.engines.redis_watch import Watcher
from specpilot.gateway.process.certificates import Certificates
from specpilot.gateway.process.worker import Worker
from specpilot.gateway.relay.context import GatewayContext

FIRST_PROBE_S: Final = 1.0
"""Seconds that the first probes may take before requests are accepted without their results."""

Follower = Watcher | Resolver
"""Passes changes of engines or keys to a context, from a thread of its own."""


@asynccontextmanager
async def serving(
    context: GatewayContext,
    followers: Sequence[Follower],
    worker: Worker | None,
    certificates: Sequence[Certificates],
) -> AsyncIterator[None]:
    """Keep `context` up to date by `followers`, and `certificates` by their files."""
    context.bind(asyncio.get_running_loop())
    probe = Probe(context.fleet, context.monotonic, context.engine_ejected)
    with suppress(TimeoutError):
        async with asyncio.timeout(FIRST_PROBE_S):
            for follower in followers:
                if isinstance(follower, Resolver):
                    context.fleet.resolve(follower.name, await asyncio.to_thread(follower.resolve))
            await probe.once()
    if worker is not None:
        await worker.connect()
    running = [probe.run(), *(item.follow() for item in certificates)]
    running += [] if worker is None else [worker.run(context)]
    tasks = [context.spawn(asyncio.get_running_loop().create_task(item)) for item in running]
    for follower in followers:
        follower.start()
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for follower in followers:
            follower.stop()
        if context.recorder.tracing is not None:
            await context.recorder.tracing.close()
        if worker is not None:
            await worker.close(context)
        context.fleet.close()
        context.recorder.log.close()
