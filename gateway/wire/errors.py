"""The gateway's own errors, each with the side at fault and the remedy. Pure.

Every error of the gateway derives from `GatewayError` and becomes, once and here, OpenAI's envelope `{"error":
{"message", "type", "param", "code"}}`, or on the routes of Anthropic's API `{"type": "error", "error": {...}}`.
Messages name the field and the remedy; they contain no secret and no text of a body. Errors of engines pass through;
only those in another shape than the route's are converted.
"""

import contextlib
from collections.abc import Mapping
from math import ceil
from types import MappingProxyType
from typing import Any, ClassVar, Final

import orjson

from specpilot.gateway.wire.routes import ANTHROPIC

_OPENAI_TYPES: Final = {401: "authentication_error", 403: "permission_error", 429: "api_error"}
_ANTHROPIC_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Types of errors by status. Any other is `invalid_request_error` below 500 and `api_error` from there."""


class GatewayError(Exception):
    """Root. `status` and `code` describe the error; a rejection for lack of room is counted as `refusal`.

    `headers` are those of its answer: `retry_after_s`, if given, becomes `Retry-After` (whole seconds, rounded up, at
    least 1). `kind` replaces the type that OpenAI's clients get by the status.
    """

    status: ClassVar[int]
    code: ClassVar[str]
    refusal: str | None
    kind: str | None = None
    headers: Mapping[str, str] = MappingProxyType({})

    def __init_subclass__(cls, *, status: int, code: str, refusal: str | None = None) -> None:
        cls.status, cls.code, cls.refusal = status, code, refusal

    def __init__(self, message: str, param: str | None = None, retry_after_s: float | None = None) -> None:
        self.message = message
        self.param = param
        if retry_after_s is not None:
            self.headers = {"retry-after": str(max(1, ceil(retry_after_s)))}
        super().__init__(message)


class BadHeadError(GatewayError, status=400, code="bad_request"):
    """The request, its lengths included, is not valid HTTP/1.1."""


class InvalidJsonError(GatewayError, status=400, code="invalid_json"):
    """The body is not JSON, or not a JSON object."""


class InvalidFieldError(GatewayError, status=400, code="invalid_field"):
    """A field that the gateway itself reads is missing or has the wrong type."""


class InvalidApiKeyError(GatewayError, status=401, code="invalid_api_key"):
    """No key, or an unknown one."""

    headers = MappingProxyType({"www-authenticate": "Bearer"})


class ModelNotAllowedError(GatewayError, status=403, code="model_not_allowed"):
    """The API key may not ask for the model."""


class ModelNotFoundError(GatewayError, status=404, code="model_not_found"):
    """No engine serves the model, not even one that is down."""


class ResponseNotFoundError(GatewayError, status=404, code="response_not_found"):
    """No engine here made the response, or it no longer exists."""


class RouteNotFoundError(GatewayError, status=404, code="route_not_found"):
    """The path is not on the allow-list of relayed routes."""


class MethodNotAllowedError(GatewayError, status=405, code="method_not_allowed"):
    """The route exists, with the method `allowed`."""

    def __init__(self, message: str, allowed: str = "POST") -> None:
        super().__init__(message)
        self.headers = {"allow": allowed}


class RequestTimeoutError(GatewayError, status=408, code="request_timeout"):
    """The client did not send its whole request in time."""


class BodyTooLargeError(GatewayError, status=413, code="body_too_large"):
    """The body is larger than `--max-body-bytes`."""


class BodyTooComplexError(GatewayError, status=413, code="body_too_complex"):
    """The body has more values, or more members in one object, than the gateway parses."""


class ConnectionsFullError(GatewayError, status=503, code="connections_full", refusal="connections"):
    """`--max-connections` clients are connected."""


class BodiesFullError(GatewayError, status=503, code="bodies_full", refusal="bodies_full"):
    """The bodies of requests under way take `--max-bodies-bytes`."""


class UnsupportedCodingError(GatewayError, status=415, code="unsupported_coding"):
    """The body is in a `Content-Encoding` that is not decoded here."""

    def __init__(self, coding: str, decoded: str = "gzip, deflate, zstd") -> None:
        """`decoded` lists the codings that are decoded here."""
        remedy = f"send the body as it is, or in one of {decoded}" if decoded else "send it as it is (--decode-bodies)"
        super().__init__(f"the body's Content-Encoding, {coding}, is not decoded here; {remedy}")
        self.headers = {"accept-encoding": decoded or "identity"}


class InvalidCodingError(GatewayError, status=400, code="invalid_coding"):
    """The body does not match its `Content-Encoding`."""

    def __init__(self, coding: str, problem: str) -> None:
        super().__init__(f"the body is not in its Content-Encoding, {coding}: {problem}; send it whole, or as it is")


class RateLimitError(GatewayError, status=429, code="rate_limit_exceeded"):
    """The API key is over a limit. `kind`, e.g. requests or tokens, is the type, as in OpenAI's API."""

    def __init__(self, message: str, kind: str, retry_after_s: float) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.kind = self.refusal = kind


class QueueFullError(GatewayError, status=429, code="queue_full", refusal="queue_full"):
    """Every engine is full, and the class's line is too."""


class HeadTooLargeError(GatewayError, status=431, code="head_too_large"):
    """The request's headers are larger than the gateway reads."""


class InternalError(GatewayError, status=500, code="internal_error"):
    """A fault of the gateway itself."""


class BadEngineResponseError(GatewayError, status=502, code="bad_engine_response"):
    """An engine sent something other than HTTP, or closed before its answer."""


class EngineUnavailableError(GatewayError, status=503, code="engine_unavailable"):
    """No engine of the model can be reached."""


class KeysUnknownError(GatewayError, status=503, code="api_keys_unknown"):
    """Redis, which holds API keys, was not read since the start, so the gateway cannot check the request."""


class QueueTimeoutError(GatewayError, status=503, code="queue_timeout", refusal="queue_timeout"):
    """Every engine was full for as long as the request could wait."""


class DrainingError(GatewayError, status=503, code="draining"):
    """This gateway is shutting down; another replica will answer."""


class EngineTimeoutError(GatewayError, status=504, code="engine_timeout"):
    """An engine took longer than one of the time-outs; the message names which."""


class StreamBrokenError(GatewayError, status=502, code="stream_broken"):
    """An engine's stream ended early. Sent as an event, because the status is already sent."""


def error_body(  # noqa: PLR0913, PLR0917 - the members of an error
    path: str, status: int, message: str, param: str | None, code: str | None, kind: str | None = None
) -> bytes:
    """Return the error body of the route `path`: OpenAI's, or Anthropic's with `param` and `code` added.

    `kind` replaces OpenAI's type for `status`.
    """
    is_anthropic = path in ANTHROPIC
    named = _ANTHROPIC_TYPES.get(status) if is_anthropic else kind or _OPENAI_TYPES.get(status)
    fallback = "invalid_request_error" if status < 500 else "api_error"  # noqa: PLR2004 - HTTP's border
    error = {"message": message, "type": named or fallback, "param": param, "code": code}
    return orjson.dumps({"type": "error", "error": error} if is_anthropic else {"error": error})


def body_of(error: GatewayError, path: str = "") -> bytes:
    """Return the body that reports `error` to a client of the route `path`."""
    return error_body(path, error.status, error.message, error.param, error.code, error.kind)


def event_of(error: GatewayError, path: str) -> bytes:
    """Return `error` as one server-sent event of the route `path`, at which its client raises an error."""
    return _event(body_of(error, path), path)


def event_of_answer(status: int, body: bytes, path: str) -> bytes:
    """Return an engine's whole answer, which is not a stream, as an error event for a client that reads a stream."""
    if status < 400:  # noqa: PLR2004 - HTTP's border
        return event_of(BadEngineResponseError("the engine did not answer with a stream of events; try again"), path)
    return _event(enveloped(status, body, path) or orjson.dumps(orjson.loads(body)), path)  # on one line


def _event(body: bytes, path: str) -> bytes:
    """Return an error's event: Anthropic's client ignores those without a name, others those with an unknown one."""
    return b"%sdata: %s\n\n" % (b"event: error\n" if path in ANTHROPIC else b"", body)


def enveloped(status: int, body: bytes, path: str = "") -> bytes | None:
    """Return an engine's error in the shape of the route `path`; `None` if it has that shape already.

    `body` is the engine's whole error body. Plain text, FastAPI's `{"detail": ...}` and vLLM's older `{"object":
    "error", "message": ...}` are understood.
    """
    document: Any = None
    with contextlib.suppress(orjson.JSONDecodeError):
        document = orjson.loads(body)
    param: Any = None
    code: Any = "engine_error"
    reason: Any = body.decode(errors="replace").strip()
    if isinstance(document, dict):
        stated = document.get("error")
        if isinstance(stated, dict):
            if path not in ANTHROPIC or document.get("type") == "error":
                return None
            reason, param, code = stated.get("message"), stated.get("param"), stated.get("code")
        else:
            reason = document.get("message") or document.get("detail") or stated
    if not reason:
        reason = f"the engine answered {status} without a reason"
    elif not isinstance(reason, str):
        reason = orjson.dumps(reason).decode()
    return error_body(
        path, status, reason[:4096], param if isinstance(param, str) else None, code if isinstance(code, str) else None
    )
