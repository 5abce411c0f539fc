"""The background tasks of a serving gateway: probes, followers of engines and keys, certificates, the worker's counts.

All of them, and a first probe of each engine, start before the first request is accepted and end after the last.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Final

from fastapi import FastAPI

from specpilot.gateway.engines.dns import Resolver
from specpilot.gateway.engines.probe import Probe
from specpilot.gateway.engines.redis_watch import Watcher
from specpilot.gateway.process.admin_listener import AdminListener
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
    towards_engines: Certificates | None,
    app: FastAPI,
) -> AsyncIterator[None]:
    """Keep `context` up to date by `followers` while `app` serves. Follows the files of `towards_engines` too."""
    del app
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
    running = [probe.run()]
    running += [] if worker is None else [worker.run(context)]
    running += [] if towards_engines is None else [towards_engines.follow()]
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


@asynccontextmanager
async def serving_with(
    admin: AdminListener, lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]], app: FastAPI
) -> AsyncIterator[None]:
    """Serve `admin` too, within `lifespan`."""
    async with lifespan(app):
        await admin.start()
        try:
            yield
        finally:
            admin.close()
