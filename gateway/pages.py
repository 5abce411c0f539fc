"""The pages that the gateway answers itself, from memory: a table of paths.

Errors have the same envelope as everywhere. A path that is neither a page nor relayed is a 404, so engines' control
routes (`/speculation`, `/sleep`, `/collective_rpc`, `/load_lora_adapter`, ...) cannot be reached in any spelling.
"""

import secrets
from collections.abc import Awaitable, Callable, Mapping
from email.utils import formatdate
from functools import partial
from http import HTTPStatus
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import orjson
from prometheus_client import CONTENT_TYPE_LATEST

from specpilot.gateway.relay.context import GatewayContext
from specpilot.gateway.wire.errors import (
    BadHeadError,
    InternalError,
    InvalidApiKeyError,
    MethodNotAllowedError,
    ModelNotFoundError,
    RouteNotFoundError,
)
from specpilot.gateway.wire.heads import RequestHead, error_reply
from specpilot.gateway.wire.origins import MAX_AGE_S, METHODS, Origins
from specpilot.gateway.wire.routes import PROXIED
from specpilot.policy.codec import to_plain

_MODEL: Final = "/v1/models/"


class Answer(NamedTuple):
    """What a page shows."""

    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    media_type: str = "application/json"


Page = Callable[[RequestHead], Awaitable[Answer]]
"""Raises a `GatewayError` when there is nothing to show."""


class Pages:
    """The pages of one port: those for clients, and those for operators if it `is_for_operators`.

    `shown_settings` holds no secret; `admin_token` opens `GET /admin/config`; `exposition` returns the metrics as text
    or raises `OSError`.
    """

    def __init__(
        self,
        context: GatewayContext,
        admin_token: str | None,
        shown_settings: Mapping[str, Any],
        exposition: Callable[[], Awaitable[bytes]],
        *,
        is_for_operators: bool = True,
    ) -> None:
        self._context = context
        self._admin_token = admin_token
        self._shown_settings = shown_settings
        self._exposition = exposition
        self._pages: dict[str, Page] = {
            "/health": self._health,
            "/ready": self._ready,
            "/ping": self._ready,
            "/v1/models": self._models,
        }
        if is_for_operators:
            self._pages |= {"/metrics": self._metrics, "/admin/config": self._config}

    async def reply(
        self, head: RequestHead, target: bytes, fields: list[tuple[bytes, bytes]], *, keep_alive: bool
    ) -> bytes:
        """Return the whole response to a request for `target` with the headers `fields`."""
        origins, origin = self._context.origins, head.origin
        lines = b"date: %s\r\n" % formatdate(self._context.now(), usegmt=True).encode()
        if origins is not None:
            lines += origins.lines(origin or b"")
        try:
            values = dict(fields)
            is_asked = head.method == b"OPTIONS" and b"access-control-request-method" in values
            if origins is not None and origin is not None and is_asked:
                answer = Answer(b"", media_type="text/plain")
                lines += _preflight_lines(origins, origin, values)
            else:
                answer = await self._page(head.method, target.partition(b"?")[0].decode("latin-1"))(head)
        except Exception as error:  # noqa: BLE001 - the client must get an answer in any case
            is_head = head.method == b"HEAD"
            return error_reply(self._context.reply_to(error), lines, keep_alive=keep_alive, is_head=is_head)
        return b"HTTP/1.1 %d %s\r\ncontent-type: %s\r\ncontent-length: %d\r\n%s%s\r\n%s" % (
            *(answer.status, answer.status.phrase.encode(), answer.media_type.encode(), len(answer.body), lines),
            b"" if keep_alive else b"connection: close\r\n",
            b"" if head.method == b"HEAD" else answer.body,
        )

    def _page(self, method: bytes, raw_path: str) -> Page:
        """Return the page at `raw_path`. Raises `RouteNotFoundError` and `MethodNotAllowedError`."""
        path = unquote(raw_path)
        page = self._pages.get(path)
        if page is None and path.startswith(_MODEL):
            page = partial(self._model, path.removeprefix(_MODEL))
        if page is None:
            known = ", ".join(sorted(PROXIED))
            raise RouteNotFoundError(f"there is no {raw_path[:128]} here; relayed are {known}")
        if method not in (b"GET", b"HEAD"):
            raise MethodNotAllowedError(f"{path} takes GET", "GET, HEAD")
        return page

    async def _health(self, _head: RequestHead) -> Answer:
        """Whether the process runs."""
        return Answer(b'{"status":"ok"}')

    async def _ready(self, _head: RequestHead) -> Answer:
        """Whether new requests should be sent here."""
        context = self._context
        status = "ready"
        if context.is_draining:
            status = "draining"
        elif context.snapshot.is_awaiting_keys and not context.snapshot.keys:
            status = "no API keys"
        elif not context.fleet.is_serving:
            status = "no engine"
        is_ready = status == "ready"
        return Answer(orjson.dumps({"status": status}), HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE)

    async def _models(self, head: RequestHead) -> Answer:
        """Every name that the API key may ask for: models of engines, as last listed, and names with a model route."""
        context = self._context
        return Answer(orjson.dumps({"object": "list", "data": context.cards(context.key_of(head.api_key))}))

    async def _model(self, name: str, head: RequestHead) -> Answer:
        """One model."""
        context = self._context
        for card in context.cards(context.key_of(head.api_key)):
            if card["id"] == name:
                return Answer(orjson.dumps(card))
        raise ModelNotFoundError(f"the model `{name[:128]}` does not exist here; GET /v1/models lists those that do")

    async def _metrics(self, _head: RequestHead) -> Answer:
        """Prometheus metrics."""
        try:
            return Answer(await self._exposition(), media_type=CONTENT_TYPE_LATEST)
        except OSError as error:
            raise InternalError(f"the workers' counts cannot be read: {error}; restart the gateway") from error

    async def _config(self, head: RequestHead) -> Answer:
        """The configuration in force at this replica: settings, engines, policies and key ids, without secrets."""
        if self._admin_token is None:
            raise InvalidApiKeyError("this route is closed; start the gateway with --admin-token to open it")
        if head.api_key is None or not secrets.compare_digest(head.api_key, self._admin_token.encode()):
            raise InvalidApiKeyError("send `Authorization: Bearer <token>` with the token of --admin-token")
        return Answer(orjson.dumps(_config_of(self._context, self._shown_settings)))


def _preflight_lines(origins: Origins, origin: bytes, values: Mapping[bytes, bytes]) -> bytes:
    """Return the header lines that allow a web page its request. Raises `BadHeadError` if it may not send that.

    `values` are those of the preflight's headers.
    """
    is_private = b"access-control-request-private-network" in values
    method = values[b"access-control-request-method"].strip(b" \t").decode("latin-1")
    if not origins.allows(origin) or method not in METHODS or (is_private and origins.is_any):
        raise BadHeadError("a page of this origin may not send this request (--allowed-origins)")
    lines = b"access-control-allow-methods: %s\r\naccess-control-max-age: %d\r\n" % (
        ", ".join(METHODS).encode(),
        MAX_AGE_S,
    )
    headers = values.get(b"access-control-request-headers")
    if headers is not None:
        lines += b"access-control-allow-headers: %s\r\n" % headers
    return lines + (b"access-control-allow-private-network: true\r\n" if is_private else b"")


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
