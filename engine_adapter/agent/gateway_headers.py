"""A gateway's decisions about a request: from its headers to its sampling parameters.

| header              | entry of `extra_args` | honoured                                                            |
|---------------------|-----------------------|---------------------------------------------------------------------|
| `x-traffic-class`   | `traffic_class`       | from callers with the gateway's key; without that setting, from all |
| `x-specpilot-k-max` | `k_max`               | from all: it only limits the caller's own request                   |

A header wins over the same entry in the body's `vllm_xargs`. If `SPECPILOT_ENGINE_GATEWAY_KEY` is set, a request of any
other caller runs as `default`, whatever its header and its body say. A header that is no class name or no number counts
as absent. Of a header that occurs twice the last one counts: a proxy adds its own after the client's.

The body is not touched. The middleware keeps the entries in a context variable. Tasks that vLLM starts for the request
inherit it, so it reaches the place where vLLM checks the sampling parameters (`vllm.parameters`), on every route.
"""

import hmac
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextvars import ContextVar
from typing import Any

from specpilot.engine_adapter.plan.request_facts import CEILING_ARGUMENT, CLASS_ARGUMENT
from specpilot.policy.names import DEFAULT_CLASS, is_class_name

CLASS_HEADER = b"x-traffic-class"
K_MAX_HEADER = b"x-specpilot-k-max"
_K_DIGITS = 4

_arguments: ContextVar[Mapping[str, Any] | None] = ContextVar("specpilot_arguments", default=None)


class GatewayHeadersMiddleware:
    """ASGI middleware of vLLM's server. `gateway_key` is the gateway's API key; `None`: every caller may be one."""

    def __init__(self, app: Callable[..., Awaitable[None]], gateway_key: str | None) -> None:
        self._app = app
        self._gateway_key = gateway_key

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Serve one request."""
        if scope["type"] == "http":  # set in any case: a pipelined request inherits the variable of the one before
            _arguments.set(read_arguments(scope["headers"], self._gateway_key))
        await self._app(scope, receive, send)


def stated_arguments() -> Mapping[str, Any]:
    """Return the entries of `extra_args` that the headers of the present request state."""
    return _arguments.get() or {}


def read_arguments(headers: Iterable[tuple[bytes, bytes]], gateway_key: str | None) -> dict[str, Any]:
    """Return the entries of `extra_args` that `headers` (names in lower case) state."""
    stated = {name: value.strip().decode("latin-1") for name, value in headers}
    arguments: dict[str, Any] = {}
    name, k_max = stated.get(CLASS_HEADER, ""), stated.get(K_MAX_HEADER, "")
    if gateway_key is not None and not _has_key(stated.get(b"authorization", ""), gateway_key):
        arguments[CLASS_ARGUMENT] = DEFAULT_CLASS
    elif is_class_name(name):
        arguments[CLASS_ARGUMENT] = name
    if k_max.isascii() and k_max.isdigit() and len(k_max) <= _K_DIGITS:
        arguments[CEILING_ARGUMENT] = int(k_max)
    return arguments


def _has_key(authorization: str, gateway_key: str) -> bool:
    scheme, _, key = authorization.partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(key.strip().encode(), gateway_key.encode())
