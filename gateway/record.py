"""What remains of a request when it is over: counts, and a line in the access log. No body, no secret."""

from gateway.delivery import Delivery
from gateway.errors import GatewayError
from gateway.intake import Intake
from gateway.plane import Plane
from gateway.relay import Relay
from gateway.tracing import Span
from policy.types import OTHER, ApiKey

CLIENT_LEFT = 499
_ERROR_BORDER = 400


class Outcome:
    """How one request went. Times are monotonic seconds; `relay` is `None` when it never got as far as an engine.

    `error` says what went wrong where the status does not: the code of the gateway's own error, sent instead of a
    response or at the end of one; `error_event` for an engine's within a stream; `stalled` for a client cut off.
    """

    __slots__ = (
        "ended_at", "error", "intake", "key", "method", "path", "phase", "received_at", "relay", "request_id", "span",
        "status", "waited_s",
    )  # fmt: skip

    def __init__(  # noqa: PLR0913 - a request is that much
        self,
        *,
        request_id: bytes,
        method: bytes,
        path: str,
        status: int,
        phase: str,
        received_at: float,
        ended_at: float,
        error: str | None,
        key: ApiKey | None = None,
        intake: Intake | None = None,
        relay: Relay | None = None,
        span: Span | None = None,
    ) -> None:
        self.request_id = request_id
        self.method = method
        self.path = path
        self.status = status
        self.phase = phase
        self.received_at = received_at
        self.ended_at = ended_at
        self.error = error
        self.key = key
        self.intake = intake
        self.relay = relay
        self.span = span
        self.waited_s = 0.0

    @property
    def delivery(self) -> Delivery | None:
        """The response, as far as it came."""
        return None if self.relay is None else self.relay.delivery

    @property
    def engine_id(self) -> str | None:
        """The engine that was tried last."""
        return None if self.relay is None or self.relay.leg is None else self.relay.leg.engine.engine_id

    @property
    def engines_tried(self) -> int:
        """How many engines were tried."""
        return 0 if self.relay is None else len(self.relay.engines)


def record_unread(plane: Plane, request_id: bytes, error: GatewayError, began_at: float | None) -> None:
    """Count and log a request that could not be read, and so has neither method nor path."""
    now = plane.monotonic()
    began_at = now if began_at is None else began_at
    outcome = Outcome(
        request_id=request_id,
        method=b"",
        path="",
        status=error.status,
        phase="request",
        received_at=began_at,
        ended_at=now,
        error=error.code,
    )
    record(plane, outcome)


def record(plane: Plane, outcome: Outcome) -> None:
    """Count `outcome`, log it, and end its span."""
    intake, relay, delivery = outcome.intake, outcome.relay, outcome.delivery
    cell = plane.metrics.cell(OTHER, OTHER) if intake is None else intake.cell
    duration_s = outcome.ended_at - outcome.received_at
    cell.count(outcome.status, duration_s)
    overhead_s = None if relay is None else relay.overhead_s
    if overhead_s is not None:
        cell.overhead.observe(overhead_s)
    ttft_s = None
    if delivery is not None:
        if delivery.is_stream and delivery.first_at is not None:
            ttft_s = delivery.first_at - outcome.received_at
            cell.ttft.observe(ttft_s)
        cell.learn(delivery.usage, delivery.events)
    trace = None
    if outcome.span is not None and plane.tracing is not None:
        trace = plane.tracing.trace_id(outcome.span)
        plane.tracing.end(outcome.span, outcome)
    if plane.log.is_on:
        usage = None if delivery is None else delivery.usage
        plane.log.add(
            {
                "at": _rounded(plane.clock.now(), 1e3),
                "request_id": outcome.request_id.decode(),
                "method": outcome.method.decode(),
                "path": outcome.path,
                "model": None if intake is None else intake.model,
                "traffic_class": None if intake is None else intake.traffic_class,
                "key_id": None if outcome.key is None else outcome.key.key_id,
                "engine": outcome.engine_id,
                "engines_tried": outcome.engines_tried,
                "status": outcome.status,
                "error": outcome.error,
                "phase": outcome.phase,
                "queue_ms": _ms(outcome.waited_s),
                "duration_ms": _ms(duration_s),
                "ttft_ms": None if ttft_s is None else _ms(ttft_s),
                "input_tokens": None if usage is None else usage.input_tokens,
                "output_tokens": None if usage is None else usage.output_tokens,
                "acceptance_length": None if usage is None else usage.acceptance_length,
                "trace_id": trace,
            }
        )


def _ms(seconds: float) -> float:
    """Return milliseconds to two decimals."""
    return _rounded(seconds * 1e3, 1e2)


def _rounded(value: float, steps: float) -> float:
    """Return `value` to the nearest of `steps` to a unit; `round` takes the way by decimal text, ten times as long."""
    return int(value * steps + (0.5 if value >= 0 else -0.5)) / steps


def used_tokens(outcome: Outcome, intake: Intake) -> int:
    """Return how many tokens a request counts for against its key's limit, now that it is over.

    What the response said; nothing, where nothing was sent or the answer was an error. The estimate stands where the
    response did not say, unless more events than that came.
    """
    relay = outcome.relay
    if relay is None or not relay.sent_at or (outcome.status >= _ERROR_BORDER and outcome.status != CLIENT_LEFT):
        return 0
    estimate = intake.work_tokens
    if relay.delivery is None:
        return estimate
    said = relay.delivery.usage.total_tokens
    return max(estimate, relay.delivery.events) if said is None else said
