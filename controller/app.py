"""The only wiring: settings in, one running controller out."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from fastapi import FastAPI
from fastapi.responses import FileResponse, JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

from controller import problems
from controller.access import Access
from controller.admin import routes
from controller.collect import Collector
from controller.lease import Leadership
from controller.loop import ControlLoop
from controller.metrics import ControllerMetrics
from controller.pilot import Pilot
from controller.prometheus_source import PrometheusSource
from controller.record import Recorded, to_line
from controller.replies import Status
from controller.settings import ControllerSettings
from controller.tuning import without
from policy.clock import Clock
from policy.errors import StoreUnavailableError
from policy.store import Store
from policy.types import Mode

_log = logging.getLogger(__name__)
_CONSOLE = Path(__file__).parent / "console" / "index.html"


def create_app(settings: ControllerSettings, store: Store, clock: Clock) -> FastAPI:
    """Return the controller as an ASGI application whose lifespan runs the loop."""
    metrics = ControllerMetrics()
    loops: list[ControlLoop] = []
    ideas = tuple(filter(None, settings.without.split(",")))
    token = settings.admin_token.get_secret_value() if settings.admin_token else None

    def wake() -> None:
        for loop in loops:
            loop.wake()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=256)) as session:
            loop = ControlLoop(
                store=store,
                leadership=Leadership(store, settings.holder, clock),
                collector=(
                    PrometheusSource(session, clock, settings.prometheus)
                    if settings.prometheus
                    else Collector(session, clock)
                ),
                pilot=Pilot(without(ideas)),
                metrics=metrics,
                clock=clock,
                interval_s=settings.interval_s,
                default_mode=Mode(settings.default_mode),
                without=ideas,
                recorder=_recorder(settings.record) if settings.record else None,
            )
            loops.append(loop)
            running = asyncio.create_task(loop.run())
            try:
                yield
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    app = FastAPI(title="SpecPilot controller", lifespan=lifespan)
    problems.install(app)
    app.include_router(routes(store, Access(token), clock, wake))

    @app.get("/", include_in_schema=False)
    async def console() -> Response:
        return FileResponse(_CONSOLE, headers={"Cache-Control": "no-cache"})

    @app.get("/health", response_model=Status)
    async def health() -> JSONResponse:
        """Whether the process answers."""
        return JSONResponse({"status": "ok"})

    @app.get("/ready", response_model=Status, responses={503: {"model": Status}})
    async def ready() -> JSONResponse:
        """Whether the loop runs and Redis answers."""
        try:
            await asyncio.to_thread(store.ping)
        except StoreUnavailableError as error:
            return JSONResponse({"status": "not ready", "problem": str(error)}, status_code=503)
        if not loops or loops[0].ticks == 0:
            return JSONResponse({"status": "not ready", "problem": "the loop has not ticked yet"}, status_code=503)
        return JSONResponse({"status": "ready"})

    @app.get("/metrics", include_in_schema=False)
    async def metrics_page() -> Response:
        return Response(metrics.render(), media_type=CONTENT_TYPE_LATEST)

    return app


class _recorder:  # noqa: N801 - a callable that happens to keep a file
    """Appends each tick to a file; a full disk ends the recording, not the controller."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_broken = False

    def __call__(self, tick: Recorded) -> None:
        if self._is_broken:
            return
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(to_line(tick) + "\n")
        except OSError as error:
            self._is_broken = True
            _log.error("recording to %s ends: %s", self._path, error)
