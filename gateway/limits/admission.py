"""Decides whether a request may go to an engine now, or has to wait. Pure: `now` is monotonic seconds.

| state of a model | condition | a new request |
|---|---|---|
| open | an engine in service has fewer than `engine_capacity` requests by rank, and none waits | is sent |
| full | all engines in service have that many, or their `running_limit` | joins the line of its model and class |
| draining its lines | there is room, and requests wait | the waiting ones go first |

The engines in service are those that neither drain nor are ejected; when all others are ejected, those that do not
drain (see `gateway.routing.balance`). Without any of these a model is open, and the request fails at once. Only
requests of this gateway count; other replicas' requests are unknown.

Each line holds at most `queue_limit` requests. Free room goes to the next request of the model by
`gateway.limits.fair_queue`; models that share engines are served in rotation. No new request overtakes a waiting one of
its model.

The relay calls `serve` when a request ends. The sweep calls it too, because there may be room for other reasons: an
engine joined, returned, or stopped draining. A retry does not wait again, so it may exceed the capacity.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from specpilot.gateway.limits.fair_queue import FairQueue
from specpilot.gateway.routing.balance import Candidate
from specpilot.gateway.wire.errors import GatewayError, QueueFullError

RETRY_AFTER_MIN_S: Final = 1.0
"""The least `Retry-After` of a rejected request, in seconds; the header has whole seconds."""


class Bounded(Candidate, Protocol):
    """An engine with a bounded number of requests. `running_limit`: what it allows by its record; `None`: any.

    `ranks`: how many engines it is, which share its requests.
    """

    ranks: int
    outstanding_requests: int
    running_limit: int | None


class Waiter(Protocol):
    """A request that waits."""

    def proceed(self, now: float) -> None:
        """There is room: send the request at once."""

    def end_with(self, error: GatewayError) -> None:
        """End the request with `error`."""


B = TypeVar("B", bound=Bounded)


@dataclass(slots=True, eq=False)
class Place:
    """A request's place in a line. `since` is the monotonic second in which it began to wait."""

    waiter: Waiter
    model: str
    traffic_class: str
    since: float


def without_room(engines: Sequence[B], capacity: int) -> tuple[B, ...] | None:
    """Return the full ones of `engines`, usually none; `None` when all usable engines are full."""
    full = [engine for engine in engines if _is_full(engine, capacity)]
    if not full:
        return ()
    undrained = [engine for engine in engines if not engine.is_draining]
    usable = [engine for engine in undrained if not engine.outlier_detection.is_ejected] or undrained
    # Without a usable engine nothing waits: the request fails at once with the error for that.
    return None if usable and all(_is_full(engine, capacity) for engine in usable) else tuple(full)


def _is_full(engine: Bounded, capacity: int) -> bool:
    limit, capacity = engine.running_limit, engine.ranks * capacity
    return engine.outstanding_requests >= (capacity if limit is None or limit > capacity else limit)


class Admission(Generic[B]):
    """The lines of waiting requests, by model and class."""

    def __init__(self, engine_capacity: int, queue_limit: int, engines_of: Callable[[str], Sequence[B]]) -> None:
        """`queue_limit` is per model and class."""
        self._capacity = engine_capacity
        self._limit = queue_limit
        self._engines_of = engines_of
        self._queues: dict[str, FairQueue[Place]] = {}

    def is_open(self, model: str, now: float) -> bool:
        """Whether a new request may go to an engine of `model` now."""
        if self._queues:
            self.serve(now)
            if model in self._queues:
                return False
        return without_room(self._engines_of(model), self._capacity) is not None

    def full_engines(self, model: str) -> tuple[B, ...]:
        """Return the engines of `model` without room."""
        return without_room(self._engines_of(model), self._capacity) or ()

    def join(self, place: Place, weight: float, priority: int) -> None:
        """Add `place` to its line, by its class's weight and priority. Raises `QueueFullError`."""
        model, name = place.model, place.traffic_class
        queue = self._queues.get(model)
        if (0 if queue is None else queue.length(name)) >= self._limit:
            raise QueueFullError(
                f"all engines of `{model}` are busy and {self._limit} requests of class `{name}` wait already "
                "(--queue-limit); try again later",
                retry_after_s=self.wait_s(model, name, place.since),
            )
        if queue is None:
            queue = self._queues[model] = FairQueue()
        queue.put(place, name, weight, priority)

    def leave(self, place: Place) -> None:
        """Remove `place`: its request has ended."""
        queue = self._queues.get(place.model)
        if queue is not None:
            queue.drop(place, place.traffic_class)
            if not len(queue):
                del self._queues[place.model]

    def serve(self, now: float) -> None:
        """Send waiting requests while there is room."""
        if not self._queues:
            return
        has_moved = True
        while has_moved:  # one request of each model per round, since models may share engines
            has_moved = False
            for model in [*self._queues]:
                if without_room(self._engines_of(model), self._capacity) is None:
                    continue
                # `proceed` below may call `leave` and `serve`, so the queue is removed until it is consistent.
                queue = self._queues.pop(model, None)
                place = None if queue is None else queue.pop()
                if queue is None or place is None:
                    continue
                if len(queue):
                    self._queues[model] = queue  # at the end: rotation
                has_moved = True
                place.waiter.proceed(now)

    def wait_s(self, model: str, traffic_class: str, now: float) -> float:
        """Return the expected wait in seconds: the time that the first of the line has waited so far, at least 1 s."""
        queue = self._queues.get(model)
        first = None if queue is None else queue.first(traffic_class)
        return RETRY_AFTER_MIN_S if first is None else max(RETRY_AFTER_MIN_S, now - first.since)

    def waiting(self) -> list[Waiter]:
        """Return every request that waits."""
        return [place.waiter for queue in self._queues.values() for place in queue]
