"""A request in the queue of its model and class, while every engine is full. The rules: `gateway.limits.admission`."""

from specpilot.gateway.engines.fleet import Engine
from specpilot.gateway.limits.admission import Admission, Place, Waiter
from specpilot.gateway.relay.context import GatewayContext
from specpilot.gateway.relay.prepared_request import PreparedRequest
from specpilot.gateway.wire.deadlines import Overdue
from specpilot.gateway.wire.errors import QueueTimeoutError


def join_queue(
    context: GatewayContext,
    admission: Admission[Engine],
    waiter: Waiter,
    prepared: PreparedRequest,
    now: float,
) -> Place:
    """Return the place of a request that waits from `now` on, in monotonic seconds. Raises `QueueFullError`."""
    policy = context.class_policy(prepared.model, prepared.traffic_class)
    place = Place(waiter, prepared.model, prepared.traffic_class, now)
    admission.join(place, policy.weight, policy.priority)
    prepared.facts = None  # the parsed body is large; it is parsed again for the choice of an engine
    prepared.cell.queued += 1
    return place


def leave_queue(context: GatewayContext, place: Place, prepared: PreparedRequest, now: float) -> float:
    """Give up `place`: there is room, or the request has ended. Return its waiting time in seconds."""
    assert context.admission is not None
    context.admission.leave(place)
    waited_s = max(0.0, now - place.since)
    prepared.cell.queued -= 1
    prepared.cell.queue.observe(waited_s)
    return waited_s


def queue_timeout(place: Place, expired: Overdue, now: float) -> QueueTimeoutError:
    """Return the error for a request that has waited for too long."""
    message = f"no engine of `{place.model}` had room: {expired}; try again later"
    return QueueTimeoutError(message, retry_after_s=now - place.since)
