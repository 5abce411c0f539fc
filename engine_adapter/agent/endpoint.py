"""vLLM's endpoint plugin: `GET` and `PUT /speculation` on the engine's own port.

Guarded by the bearer token `SPECPILOT_ENGINE_CONTROL_TOKEN`. Without a token every call is refused. With
`SPECPILOT_ENGINE_TRUST_THIS_MACHINE` calls of local processes are served, but not those of web pages or through proxies
(`policy.this_machine`). The gateway never forwards to this route.

On a server with data-parallel ranks both methods act on all ranks, and the answer is `{"ranks": [...]}` with the state
of each. A rank that refuses a schedule keeps its own; the answer is then that refusal.

The plugin also adds draining at SIGTERM (`agent.draining`), the adapter's metrics (`agent.exposition`) and what a
gateway states in headers (`agent.gateway_headers`).
"""

import asyncio
import hmac
import json
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from specpilot.engine_adapter.agent.core_methods import APPLY_METHOD, DRAIN_METHOD, STATE_METHOD
from specpilot.engine_adapter.agent.draining import Draining
from specpilot.engine_adapter.agent.exposition import MetricsMiddleware
from specpilot.engine_adapter.agent.gateway_headers import GatewayHeadersMiddleware
from specpilot.engine_adapter.settings import AdapterSettings
from specpilot.policy.this_machine import why_foreign

PATH = "/speculation"
BODY_LIMIT_BYTES = 1 << 20


class SpeculationEndpoint:
    """Entry point `vllm.endpoint_plugins`; loaded when `VLLM_PLUGINS` names `specpilot`."""

    name = "specpilot"
    required_tasks = ("generate",)

    def __init__(self) -> None:
        settings = AdapterSettings.read()
        self._token = None if settings.control_token is None else settings.control_token.get_secret_value()
        self._gateway_key = None if settings.gateway_key is None else settings.gateway_key.get_secret_value()
        self._trusts_this_machine = settings.trust_this_machine
        self._draining = Draining(self._begin_drain, settings.drain_grace_s, settings.drain_timeout_s)
        self._engine_client: Any = None

    def attach_router(self, app: FastAPI) -> None:
        """Add the routes and middlewares to vLLM's application."""
        app.add_api_route(PATH, self.read, methods=["GET"])
        app.add_api_route(PATH, self.write, methods=["PUT"])
        app.add_middleware(MetricsMiddleware)
        app.add_middleware(GatewayHeadersMiddleware, gateway_key=self._gateway_key)
        self._draining.attach(app)

    async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:  # noqa: ARG002 - vLLM's protocol
        """Keep vLLM's client of the engine core."""
        self._engine_client = engine_client

    async def read(self, request: Request) -> JSONResponse:
        """Return the state of the engine: the schedule in force and its source."""
        if (refusal := self._refusal(request)) is not None:
            return refusal
        return _answer(await self._call(STATE_METHOD))

    async def write(self, request: Request) -> JSONResponse:
        """Apply a schedule from the next step on; if it is refused, the present one stays in force."""
        if (refusal := self._refusal(request)) is not None:
            return refusal
        body = await request.body()
        if len(body) > BODY_LIMIT_BYTES:
            return _error(413, "body_too_large", f"a schedule has at most {BODY_LIMIT_BYTES} bytes")
        return _answer(await self._call(APPLY_METHOD, body.decode("utf-8", errors="replace")))

    async def _begin_drain(self) -> bool | None:
        """Mark all ranks as draining; return whether one has requests, `None` without the adapter's scheduler."""
        running = [is_running for is_running in await self._call(DRAIN_METHOD) if is_running is not None]
        return any(running) if running else None

    async def _call(self, method: str, *arguments: str) -> list[Any]:
        """Return what each engine core of this server answers, in order of rank."""
        client = self._engine_client.engine_core
        calls = (client._call_utility_async(method, *arguments, engine=core) for core in client.core_engines)  # noqa: SLF001 - vLLM 0.29 to 0.31 have no public method for all
        return [json.loads(answer) for answer in await asyncio.gather(*calls)]

    def _refusal(self, request: Request) -> JSONResponse | None:
        if self._token:
            scheme, _, token = request.headers.get("authorization", "").partition(" ")
            if scheme.lower() == "bearer" and hmac.compare_digest(token.strip().encode(), self._token.encode()):
                return None
            return _error(401, "invalid_token", "send the engine's control token as 'Authorization: Bearer ...'")
        why = "this machine is not trusted either (SPECPILOT_ENGINE_TRUST_THIS_MACHINE)"
        if self._trusts_this_machine:
            peer = request.client.host if request.client else ""
            foreign = why_foreign(peer, request.headers, request.scope["http_version"])
            if foreign is None:
                return None
            why = f"without a token only this machine is served, and {foreign}"
        return _error(403, "control_token_needed", f"set SPECPILOT_ENGINE_CONTROL_TOKEN and send it; {why}")


def _answer(outcomes: Sequence[Any]) -> JSONResponse:
    if not all(outcomes):
        return _error(501, "adapter_missing", "this engine does not speculate, or its --scheduler-cls is another one")
    for outcome in outcomes:
        if "error" in outcome:
            error = outcome["error"]
            return _error(error["status"], error["code"], error["message"])
    return JSONResponse(outcomes[0] if len(outcomes) == 1 else {"ranks": outcomes})


def _error(status: int, code: str, message: str) -> JSONResponse:
    kind = "invalid_request_error" if status < 500 else "server_error"  # noqa: PLR2004 - HTTP's own boundary
    return JSONResponse({"error": {"message": message, "type": kind, "param": None, "code": code}}, status_code=status)
