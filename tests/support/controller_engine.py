"""A plant of the closed loop behind a real HTTP server and a real registration: an engine as a controller sees it."""

import asyncio
import re
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from typing import Self

import numpy as np
from aiohttp import web

from specpilot.policy import engine_metrics as names
from specpilot.policy.errors import PolicyError
from specpilot.policy.records import EngineRecord
from specpilot.policy.schedule import Schedule
from specpilot.policy.store import Store
from tests.simulation.engine import K_MAX, MODEL, POOL, Engine
from tests.simulation.traffic import Source
from tests.support.patience import PATIENCE_S


class HttpEngine:
    """Registers in `store`, follows its schedule, serves `/metrics` and `routes`; virtual traffic runs in real time."""

    def __init__(
        self,
        store: Store,
        engine_id: str = "engine-0",
        seed: int = 0,
        beat_s: float = 0.1,
        routes: Iterable[web.RouteDef] = (),
    ) -> None:
        self.plant = Engine(engine_id, np.random.default_rng(seed))
        self.sources = [Source("json", 8)]
        self.applied: list[Schedule] = []
        self.is_slow = False
        self.ignores_names = False
        self._store = store
        self._beat_s = beat_s
        self._routes = [*routes]
        self._runner: web.AppRunner | None = None
        self._task: asyncio.Task[None] | None = None
        self.url = ""

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.add_routes(self._routes)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        self._task = asyncio.create_task(self._live())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        assert self._runner is not None
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        await self._runner.cleanup()

    async def _live(self) -> None:
        while True:
            schedule = self.applied[-1] if self.applied else None
            self.plant.run(self._beat_s, self.sources, schedule)
            with suppress(PolicyError):
                await asyncio.to_thread(self._sync)
            await asyncio.sleep(self._beat_s)

    def _sync(self) -> None:
        version = self.applied[-1].version if self.applied else 0
        self._store.heartbeat(
            EngineRecord(
                self.plant.engine_id, self.url, MODEL, POOL, K_MAX, 3, 64, "eagle3", "0", "0", 1.0, time.time(), version
            ),
            5.0,
        )
        found = self._store.schedule(MODEL, POOL)
        if found is not None and found.version > version:
            self.applied.append(found)
        for question in self._store.questions(MODEL, POOL):
            if self.plant.engine_id in question.engines:
                self._store.put_answer(self.plant.answer(question))

    async def _metrics(self, request: web.Request) -> web.Response:
        if self.is_slow:
            await asyncio.sleep(5.0)
        wanted = request.query.getall("name[]", [])
        if wanted and self.ignores_names:
            return web.Response(text="")
        return web.Response(text=self.page())

    def page(self) -> str:
        return "# HELP other\nvllm:other 1\n" + self.plant.page


def own_k(page: str) -> float:
    """The mean K of an engine's running decodes, as its page tells."""
    found = re.search(rf'^{names.ACTIVE_K}{{.*traffic_class="default".*}} (\S+)$', page, re.MULTILINE)
    assert found is not None
    return float(found[1])


@contextmanager
def living_engines(redis_url: str, *names: str) -> Iterator[tuple[Store, list[HttpEngine]]]:
    """Engines with traffic, in a thread of their own, and the store that they register in."""
    store, is_over, found = Store(redis_url, PATIENCE_S), threading.Event(), list[HttpEngine]()

    async def live() -> None:
        async with AsyncExitStack() as stack:
            for seed, name in enumerate(names or ("engine-0",)):
                found.append(await stack.enter_async_context(HttpEngine(store, name, seed)))
            await asyncio.to_thread(is_over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(live()))
    thread.start()
    try:
        yield store, found
    finally:
        is_over.set()
        thread.join(PATIENCE_S)
        store.close()
