"""Builds the running controller from its settings; no other module connects its parts."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module

import aiohttp
from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

from specpilot.controller.admin import problems
from specpilot.controller.admin.access import Access, Identify
from specpilot.controller.admin.audited import AuditTrail
from specpilot.controller.admin.pages import console_pages
from specpilot.controller.admin.replies import Status
from specpilot.controller.admin.routes import routes
from specpilot.controller.decision.decider import Decider
from specpilot.controller.lease import Leadership
from specpilot.controller.loop import HANG_S, ControlLoop
from specpilot.controller.metrics import ControllerMetrics
from specpilot.controller.settings import ControllerSettings
from specpilot.controller.telemetry.prometheus_source import SCRAPED_EVERY_S, PrometheusSource
from specpilot.controller.telemetry.scraper import AT_ONCE, Collector
from specpilot.policy.access import roles_in
from specpilot.policy.clock import Clock
from specpilot.policy.errors import StoreUnavailableError
from specpilot.policy.http_client import is_direct
from specpilot.policy.model_policy import Mode
from specpilot.policy.store import Store


def create_app(settings: ControllerSettings, store: Store, clock: Clock) -> FastAPI:
    """Return the controller as an ASGI application whose lifespan runs the loop."""
    metrics = ControllerMetrics()
    loops: list[ControlLoop] = []
    default_mode = Mode(settings.default_mode)
    trail = AuditTrail(store, clock)
    access = Access(
        store,
        clock,
        settings.admin_token.get_secret_value() if settings.admin_token else None,
        _identify(settings, clock),
        trusts_this_machine=settings.trust_this_machine,
    )

    def wake() -> None:
        for loop in loops:
            loop.wake()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=AT_ONCE),
            trust_env=settings.prometheus is not None and not is_direct(settings.prometheus),
        ) as session:
            scrape_s = max(settings.interval_s, SCRAPED_EVERY_S) if settings.prometheus else settings.interval_s
            loop = ControlLoop(
                store=store,
                leadership=Leadership(store, settings.holder, clock),
                collector=(
                    PrometheusSource(session, clock, settings.prometheus)
                    if settings.prometheus
                    else Collector(session, clock)
                ),
                law=Decider(scrape_s),
                metrics=metrics,
                clock=clock,
                interval_s=settings.interval_s,
                default_mode=default_mode,
                audit=trail.append,
            )
            loops.append(loop)
            running = asyncio.create_task(loop.run())
            try:
                yield
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    # FastAPI's documentation pages load scripts from a CDN. They would run on the origin of the console and the API.
    app = FastAPI(title="SpecPilot controller", lifespan=lifespan, docs_url=None, redoc_url=None)
    problems.install(app)
    app.include_router(routes(store, access, clock, trail, on_change=wake, default_mode=default_mode))
    app.include_router(console_pages())

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
        if loops[0].is_hanging:
            problem = f"the loop has not ended a tick for more than {HANG_S:g} s"
            return JSONResponse({"status": "not ready", "problem": problem}, status_code=503)
        return JSONResponse({"status": "ready"})

    @app.get("/metrics", include_in_schema=False)
    async def metrics_page() -> Response:
        return Response(metrics.render(), media_type=CONTENT_TYPE_LATEST)

    return app


def _identify(settings: ControllerSettings, clock: Clock) -> Identify | None:
    """Return what the identity provider of the settings knows. PyJWT is imported only when there is one."""
    if settings.oidc_issuer is None or settings.oidc_audience is None:
        return None
    oidc = import_module("specpilot.controller.admin.oidc")
    rules = oidc.OidcRules(
        settings.oidc_issuer, settings.oidc_audience, settings.oidc_claim, roles_in(settings.oidc_roles)
    )
    identify: Identify = oidc.OidcProvider(rules, clock).caller
    return identify
