"""Whether requests are traced, and what tracing must offer; without it the hot path pays one look at an attribute.

The OpenTelemetry SDK reads its own standard variables (`OTEL_*`); here only those count that say whether to trace at
all. The SDK is an optional dependency, loaded only then. What keeps traces from being made is logged and costs nothing
else: no fault of tracing may keep a gateway from starting or a request from its answer.
"""

import logging
from collections.abc import Mapping
from typing import Any, Protocol

from specpilot.gateway.telemetry.outcome import Outcome
from specpilot.gateway.wire.heads import RequestHead

PROTOCOL = "http/protobuf"

_log = logging.getLogger(__name__)
Span = Any
"""A span of the SDK; opaque to all but the tracing that made it."""


class Tracing(Protocol):
    """Makes one span of each relayed request."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Spans so far by what became of them: `exported`, `failed`, `dropped`."""

    def begin(self, method: bytes, path: str, request: RequestHead) -> Span | None:
        """Return the span of a request that begins now. What goes on to engines names it from here on."""

    def end(self, span: Span, outcome: Outcome) -> None:
        """The request is over."""

    def trace_id(self, span: Span) -> str:
        """Return the name of the span's trace, 32 hexadecimal digits."""

    async def close(self) -> None:
        """Export what is left, within a bound."""


def is_wanted(environment: Mapping[str, str]) -> bool:
    """Return whether `environment` asks for traces. Logs what it asks for that does not exist here."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporter = environment.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if exporter not in ("", "none", "otlp"):
        _log.warning("OTEL_TRACES_EXPORTER: %r is not known, so nothing is traced; use otlp or none", exporter)
    is_asked = exporter == "otlp" if exporter else bool(_first(environment, "ENDPOINT"))
    protocol = _first(environment, "PROTOCOL") or PROTOCOL
    if is_asked and protocol != PROTOCOL:
        said = "OTEL_EXPORTER_OTLP_PROTOCOL: %r is not spoken here, so nothing is traced; use %s and its port (4318)"
        _log.warning(said, protocol, PROTOCOL)
        return False
    return is_asked


def _first(environment: Mapping[str, str], what: str) -> str:
    return environment.get(f"OTEL_EXPORTER_OTLP_TRACES_{what}") or environment.get(f"OTEL_EXPORTER_OTLP_{what}") or ""
