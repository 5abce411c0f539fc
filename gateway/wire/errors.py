"""The gateway's own errors, each with the side at fault and the remedy. Pure.

Every error of the gateway derives from `GatewayError` and becomes, once and here, OpenAI's envelope `{"error":
{"message", "type", "param", "code"}}`, or on the routes of Anthropic's API `{"type": "error", "error": {...}}`.
Messages name the field and the remedy; they contain no secret and no text of a body. Errors of engines pass through;
only those in another shape than the route's are converted.
"""

import contextlib
from typing import Any, ClassVar

import orjson

from specpilot.gateway.wire.routes import ANTHROPIC

_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Anthropic's error types by status. Any other is `invalid_request_error` below 500 and `api_error` from there."""


class GatewayError(Exception):
    """Root: `status` and `code` describe the error, `type` states the side at fault.

    `retry_after_s`, if given, becomes the `Retry-After` header (whole seconds, rounded up, at least 1). `refusal` is
    the kind under which a rejection for lack of room is counted.
    """

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"
    type: str = "api_error"
    refusal: str | None = None

    def __init__(self, message: str, param: str | None = None, retry_after_s: float | None = None) -> None:
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        super().__init__(message)


class BadHeadError(GatewayError):
    """The request, its lengths included, is not valid HTTP/1.1."""

    status, type, code = 400, "invalid_request_error", "bad_request"


class InvalidJsonError(GatewayError):
    """The body is not JSON, or not a JSON object."""

    status, type, code = 400, "invalid_request_error", "invalid_json"


class InvalidFieldError(GatewayError):
    """A field that the gateway itself reads is missing or has the wrong type."""

    status, type, code = 400, "invalid_request_error", "invalid_field"


class InvalidApiKeyError(GatewayError):
    """No key, or an unknown one."""

    status, type, code = 401, "authentication_error", "invalid_api_key"


class ModelNotAllowedError(GatewayError):
    """The API key may not ask for the model."""

    status, type, code = 403, "permission_error", "model_not_allowed"


class ModelNotFoundError(GatewayError):
    """No engine serves the model, not even one that is down."""

    status, type, code = 404, "invalid_request_error", "model_not_found"


class ResponseNotFoundError(GatewayError):
    """No engine here made the response, or it no longer exists."""

    status, type, code = 404, "invalid_request_error", "response_not_found"


class RouteNotFoundError(GatewayError):
    """The path is not on the allow-list of relayed routes."""

    status, type, code = 404, "invalid_request_error", "route_not_found"


class MethodNotAllowedError(GatewayError):
    """The route exists, with the method `allowed`."""

    status, type, code = 405, "invalid_request_error", "method_not_allowed"

    def __init__(self, message: str, allowed: str = "POST") -> None:
        super().__init__(message)
        self.allowed = allowed


class RequestTimeoutError(GatewayError):
    """The client did not send its whole request in time."""

    status, type, code = 408, "invalid_request_error", "request_timeout"


class BodyTooLargeError(GatewayError):
    """The body is larger than `--max-body-bytes`."""

    status, type, code = 413, "invalid_request_error", "body_too_large"


class BodyTooComplexError(GatewayError):
    """The body has more values, or more members in one object, than the gateway parses."""

    status, type, code = 413, "invalid_request_error", "body_too_complex"


class ConnectionsFullError(GatewayError):
    """`--max-connections` clients are connected."""

    status, code, refusal = 503, "connections_full", "connections"


class BodiesFullError(GatewayError):
    """The bodies of requests under way take `--max-bodies-bytes`."""

    status, code, refusal = 503, "bodies_full", "bodies_full"


class UnsupportedCodingError(GatewayError):
    """The body is in a `Content-Encoding` that is not decoded here."""

    status, type, code = 415, "invalid_request_error", "unsupported_coding"

    def __init__(self, coding: str, decoded: str = "gzip, deflate, zstd") -> None:
        """`decoded` lists the codings that are decoded here."""
        remedy = f"send the body as it is, or in one of {decoded}" if decoded else "send it as it is (--decode-bodies)"
        super().__init__(f"the body's Content-Encoding, {coding}, is not decoded here; {remedy}")
        self.decoded = decoded or "identity"


class InvalidCodingError(GatewayError):
    """The body does not match its `Content-Encoding`."""

    status, type, code = 400, "invalid_request_error", "invalid_coding"

    def __init__(self, coding: str, problem: str) -> None:
        super().__init__(f"the body is not in its Content-Encoding, {coding}: {problem}; send it whole, or as it is")


class RateLimitError(GatewayError):
    """The API key is over a limit. `kind`, e.g. requests or tokens, is the type, as in OpenAI's API."""

    status, code = 429, "rate_limit_exceeded"

    def __init__(self, message: str, kind: str, retry_after_s: float) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.type = self.refusal = kind


class QueueFullError(GatewayError):
    """Every engine is full, and the class's line is too."""

    status, code, refusal = 429, "queue_full", "queue_full"


class HeadTooLargeError(GatewayError):
    """The request's headers are larger than the gateway reads."""

    status, type, code = 431, "invalid_request_error", "head_too_large"


class InternalError(GatewayError):
    """A fault of the gateway itself."""


class BadEngineResponseError(GatewayError):
    """An engine sent something other than HTTP, or closed before its answer."""

    status, code = 502, "bad_engine_response"


class EngineUnavailableError(GatewayError):
    """No engine of the model can be reached."""

    status, code = 503, "engine_unavailable"


class KeysUnknownError(GatewayError):
    """Redis, which holds API keys, was not read since the start, so the gateway cannot check the request."""

    status, code = 503, "api_keys_unknown"


class QueueTimeoutError(GatewayError):
    """Every engine was full for as long as the request could wait."""

    status, code, refusal = 503, "queue_timeout", "queue_timeout"


class DrainingError(GatewayError):
    """This gateway is shutting down; another replica will answer."""

    status, code = 503, "draining"


class EngineTimeoutError(GatewayError):
    """An engine took longer than one of the time-outs; the message names which."""

    status, code = 504, "engine_timeout"


class StreamBrokenError(GatewayError):
    """An engine's stream ended early. Sent as an event, because the status is already sent."""

    status, code = 502, "stream_broken"


def envelope(message: str, kind: str, param: str | None, code: str | None) -> bytes:
    """Return OpenAI's error body."""
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})


def body_of(error: GatewayError, path: str = "") -> bytes:
    """Return the body that reports `error` to a client of the route `path`."""
    if path in ANTHROPIC:
        return _anthropic(error.status, error.message, error.param, error.code)
    return envelope(error.message, error.type, error.param, error.code)


def _anthropic(status: int, message: str, param: str | None, code: str | None) -> bytes:
    """Return Anthropic's error body, with OpenAI's `param` and `code` beside its own members."""
    kind = _ANTHROPIC_TYPES.get(status) or ("invalid_request_error" if status < 500 else "api_error")  # noqa: PLR2004
    error = {"type": kind, "message": message, "param": param, "code": code}
    return orjson.dumps({"type": "error", "error": error})


def event_of(error: GatewayError, path: str) -> bytes:
    """Return `error` as one server-sent event of the route `path`, at which its client raises an error.

    Anthropic's client ignores events without a name; OpenAI's, and others, ignore events with an unknown one.
    """
    name = b"event: error\n" if path in ANTHROPIC else b""
    return name + b"data: " + body_of(error, path) + b"\n\n"


def event_of_answer(status: int, body: bytes, path: str) -> bytes:
    """Return an engine's whole answer, which is not a stream, as an error event for a client that reads a stream."""
    if status < 400:  # noqa: PLR2004 - HTTP's border
        return event_of(BadEngineResponseError("the engine did not answer with a stream of events; try again"), path)
    text = enveloped(status, body, path) or orjson.dumps(orjson.loads(body))  # on one line
    name = b"event: error\n" if path in ANTHROPIC else b""
    return name + b"data: " + text + b"\n\n"


def enveloped(status: int, body: bytes, path: str = "") -> bytes | None:
    """Return an engine's error in the shape of the route `path`; `None` if it has that shape already.

    `body` is the engine's whole error body. Plain text, FastAPI's `{"detail": ...}` and vLLM's older `{"object":
    "error", "message": ...}` are understood.
    """
    document: Any = None
    with contextlib.suppress(orjson.JSONDecodeError):
        document = orjson.loads(body)
    if isinstance(document, dict):
        stated = document.get("error")
        if isinstance(stated, dict):
            if path not in ANTHROPIC or document.get("type") == "error":
                return None
            code = stated.get("code")
            message, param = str(stated.get("message") or ""), stated.get("param")
            return _anthropic(
                status, message, param if isinstance(param, str) else None, code if isinstance(code, str) else None
            )
        reason = document.get("message") or document.get("detail") or document.get("error")
    else:
        reason = body.decode(errors="replace").strip()
    if not reason:
        reason = f"the engine answered {status} without a reason"
    elif not isinstance(reason, str):
        reason = orjson.dumps(reason).decode()
    if path in ANTHROPIC:
        return _anthropic(status, reason[:4096], None, "engine_error")
    kind = "invalid_request_error" if status < 500 else "api_error"  # noqa: PLR2004 - HTTP's border
    return envelope(reason[:4096], kind, None, "engine_error")
