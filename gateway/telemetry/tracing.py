"""The interface of tracing, and whether requests are traced. Without it the relay only checks an attribute.

The OpenTelemetry SDK reads its own standard variables (`OTEL_*`); this module reads only those that switch tracing on.
The SDK is an optional dependency, loaded only then. A fault of tracing is logged and has no other effect: the gateway
starts, and requests get their answers.
"""

import logging
from collections.abc import Mapping
from typing import Any, Protocol

from specpilot.gateway.telemetry.outcome import Outcome
from specpilot.gateway.wire.heads import RequestHead

PROTOCOL = "http/protobuf"

_log = logging.getLogger(__name__)
Span = Any
"""A span of the SDK; only the tracing that made it reads it."""


class Tracing(Protocol):
    """Makes one span of each relayed request."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Spans so far by outcome: `exported`, `failed`, `dropped`."""

    def start_span(self, method: bytes, path: str, request: RequestHead) -> Span | None:
        """Return the span of a request that begins now, and name it in the request's trace headers."""

    def end_span(self, span: Span, outcome: Outcome) -> None:
        """The request has ended."""

    def trace_id(self, span: Span) -> str:
        """Return the name of the span's trace, 32 hexadecimal digits."""

    async def close(self) -> None:
        """Export the remaining spans, within a bound."""


def is_wanted(environment: Mapping[str, str]) -> bool:
    """Return whether `environment` asks for traces. Logs values that are not supported here."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporter = environment.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if exporter not in ("", "none", "otlp"):
        _log.warning("OTEL_TRACES_EXPORTER: %r is not known, so nothing is traced; use otlp or none", exporter)
    is_asked = exporter == "otlp" if exporter else bool(_first(environment, "ENDPOINT"))
    protocol = _first(environment, "PROTOCOL") or PROTOCOL
    if is_asked and protocol != PROTOCOL:
        line = "OTEL_EXPORTER_OTLP_PROTOCOL: %r is not supported, so nothing is traced; use %s and its port (4318)"
        _log.warning(line, protocol, PROTOCOL)
        return False
    return is_asked


def _first(environment: Mapping[str, str], name: str) -> str:
    stated = (environment.get(f"OTEL_EXPORTER_OTLP_{kind}{name}", "").strip() for kind in ("TRACES_", ""))
    return next(filter(None, stated), "")
