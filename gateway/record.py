"""What remains of a request when it is over: counts, and a line in the access log. No body, no secret."""

from dataclasses import dataclass

from gateway.intake import Intake
from gateway.plane import Plane
from gateway.relay import Relay
from policy.types import OTHER, ApiKey

CLIENT_LEFT = 499
_ERROR_BORDER = 400


@dataclass(slots=True)
class Outcome:
    """How one request went. Times are monotonic seconds; `relay` is `None` when it never got as far as an engine."""

    request_id: bytes
    method: bytes
    path: str
    status: int
    phase: str
    received_at: float
    ended_at: float
    key: ApiKey | None
    intake: Intake | None
    relay: Relay | None
    waited_s: float = 0.0


def record(plane: Plane, outcome: Outcome) -> None:
    """Count `outcome` and log it."""
    intake, relay = outcome.intake, outcome.relay
    delivery = None if relay is None else relay.delivery
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
    if plane.log.is_on:
        usage = None if delivery is None else delivery.usage
        plane.note(
            {
                "request_id": outcome.request_id.decode(),
                "method": outcome.method.decode(),
                "path": outcome.path,
                "model": None if intake is None else intake.facts.model,
                "traffic_class": None if intake is None else intake.traffic_class,
                "key_id": None if outcome.key is None else outcome.key.key_id,
                "engine": None if relay is None or relay.leg is None else relay.leg.engine.engine_id,
                "engines_tried": 0 if relay is None else len(relay.engines),
                "status": outcome.status,
                "phase": outcome.phase,
                "queue_ms": round(outcome.waited_s * 1000, 2),
                "duration_ms": round(duration_s * 1000, 2),
                "ttft_ms": None if ttft_s is None else round(ttft_s * 1000, 2),
                "output_tokens": None if usage is None else usage.output_tokens,
                "acceptance_length": None if usage is None else usage.acceptance_length,
            }
        )


def used_tokens(outcome: Outcome, intake: Intake) -> int:
    """Return how many tokens a request counts for against its key's limit, now that it is over.

    What the response said; nothing, where nothing was sent or the answer was an error. The estimate stands where the
    response did not say, unless more events than that came.
    """
    relay = outcome.relay
    if relay is None or not relay.sent_at or (outcome.status >= _ERROR_BORDER and outcome.status != CLIENT_LEFT):
        return 0
    estimate = intake.facts.work_tokens
    if relay.delivery is None:
        return estimate
    said = relay.delivery.usage.total_tokens
    return max(estimate, relay.delivery.events) if said is None else said
