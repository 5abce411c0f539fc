"""The routes that are not relayed: an ordinary FastAPI app, answered from memory.

Errors have the same envelope as everywhere. A path that is neither a route here nor relayed is a 404, so engines'
control routes (`/speculation`, `/sleep`, `/collective_rpc`, `/load_lora_adapter`, ...) cannot be reached in any
spelling.
"""

import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from specpilot.gateway.relay.context import GatewayContext
from specpilot.gateway.wire.errors import (
    GatewayError,
    InternalError,
    InvalidApiKeyError,
    MethodNotAllowedError,
    ModelNotFoundError,
    RouteNotFoundError,
    body_of,
)
from specpilot.gateway.wire.heads import read_request_head
from specpilot.gateway.wire.origins import EXPOSED, MAX_AGE_S, METHODS
from specpilot.gateway.wire.routes import PROXIED
from specpilot.policy.codec import to_plain

_METHOD_NOT_ALLOWED = 405


def create_routes(  # noqa: C901 - one small function a route
    context: GatewayContext,
    admin_token: str | None,
    shown_settings: Mapping[str, Any],
    exposition: Callable[[], Awaitable[bytes]],
    *,
    is_open: bool = True,
) -> FastAPI:
    """Return the app. Unless it `is_open`, it lacks the pages for operators.

    `shown_settings` holds no secret; `admin_token` opens `GET /admin/config`; `exposition` returns the metrics as text
    or raises `OSError`.
    """
    app = FastAPI(title="SpecPilot gateway", openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)

    @app.get("/health")
    async def health() -> dict[str, str]:
        """Whether the process runs."""
        return {"status": "ok"}

    @app.get("/ready")
    @app.get("/ping")
    async def ready(response: Response) -> dict[str, str]:
        """Whether new requests should be sent here."""
        status = "ready"
        if context.is_draining:
            status = "draining"
        elif context.snapshot.is_awaiting_keys and not context.snapshot.keys:
            status = "no API keys"
        elif not context.fleet.is_serving:
            status = "no engine"
        if status != "ready":
            response.status_code = 503
        return {"status": status}

    if context.origins is not None:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=context.origins.allowed,
            allow_methods=METHODS,
            allow_headers=("*",),
            allow_credentials=not context.origins.is_any,
            expose_headers=EXPOSED,
            allow_private_network=not context.origins.is_any,
            max_age=MAX_AGE_S,
        )

    operators = app if is_open else FastAPI()

    @operators.get("/metrics")
    async def metrics() -> Response:
        """Prometheus metrics."""
        try:
            return Response(await exposition(), media_type=CONTENT_TYPE_LATEST)
        except OSError as error:
            raise InternalError(f"the workers' counts cannot be read: {error}; restart the gateway") from error

    @app.get("/v1/models")
    async def models(request: Request) -> dict[str, Any]:
        """Every name that the API key may ask for: models of engines, as last listed, and names with a model route."""
        return {"object": "list", "data": context.cards(context.key_of(_api_key(request)))}

    @app.get("/v1/models/{name:path}")
    async def model(request: Request, name: str) -> Any:
        """One model."""
        for card in context.cards(context.key_of(_api_key(request))):
            if card["id"] == name:
                return card
        raise ModelNotFoundError(f"the model `{name[:128]}` does not exist here; GET /v1/models lists those that do")

    @operators.get("/admin/config")
    async def config(request: Request) -> dict[str, Any]:
        """The configuration in force at this replica: settings, engines, policies and key ids, without secrets."""
        if admin_token is None:
            raise InvalidApiKeyError("this route is closed; start the gateway with --admin-token to open it")
        token = _api_key(request)
        if token is None or not secrets.compare_digest(token, admin_token.encode()):
            raise InvalidApiKeyError("send `Authorization: Bearer <token>` with the token of --admin-token")
        return _config_of(context, shown_settings)

    @app.exception_handler(GatewayError)
    async def gateway_error(request: Request, error: GatewayError) -> Response:
        """Put an error of the gateway into the envelope."""
        del request
        return _error_response(error)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        """Put Starlette's own errors into the envelope."""
        if error.status_code == _METHOD_NOT_ALLOWED:
            allowed = (error.headers or {}).get("Allow", "GET")
            return _error_response(MethodNotAllowedError(f"{request.url.path} takes {allowed}", allowed))
        known = ", ".join(sorted(PROXIED))
        path = request.scope["raw_path"].decode("latin-1")  # the decoded path may look like a served one
        return _error_response(RouteNotFoundError(f"there is no {path[:128]} here; relayed are {known}"))

    for route in (*app.routes, *operators.routes):
        if isinstance(route, APIRoute) and "GET" in route.methods:
            route.methods.add("HEAD")  # the server sends no body
    return app


def _api_key(request: Request) -> bytes | None:
    """Return the secret in the headers of `request`, as for relayed routes."""
    return read_request_head(request.scope["headers"]).api_key


def _error_response(error: GatewayError) -> Response:
    return Response(body_of(error), error.status, error.headers, "application/json")


def _config_of(context: GatewayContext, shown_settings: Mapping[str, Any]) -> dict[str, Any]:
    now = context.monotonic()
    snapshot = context.snapshot
    return {
        "settings": dict(shown_settings),
        "is_draining": context.is_draining,
        "snapshot_age_s": context.snapshot_age_s,
        "requires_api_key": None if snapshot.is_awaiting_keys and not snapshot.needs_key else snapshot.needs_key,
        "api_keys": [
            {
                "key_id": key.key_id,
                "traffic_class": key.traffic_class,
                "allowed_classes": key.allowed_classes,
                "requests_per_minute": key.requests_per_minute,
                "tokens_per_minute": key.tokens_per_minute,
                "max_concurrent_requests": key.max_concurrent_requests,
                "allowed_models": key.allowed_models,
                "k_max": key.k_max,
                "expires_at": key.expires_at,
            }
            for key in snapshot.keys.values()
        ],
        "model_routes": {name: to_plain(route) for name, route in sorted(snapshot.model_routes.items())},
        "policies": {model: to_plain(policy) for model, policy in sorted(snapshot.policies.items())},
        "engines": [
            {
                "engine_id": engine.engine_id,
                "url": engine.url,
                "models": sorted(engine.models),
                "is_draining": engine.is_draining,
                "is_ejected": engine.outlier_detection.is_ejected,
                "share": round(engine.outlier_detection.share(now), 3),
                "outstanding_requests": engine.outstanding_requests,
                "outstanding_tokens": engine.outstanding_tokens,
            }
            for engine in context.fleet.engines.values()
        ],
    }
