"""Whether a request may go to an engine now, and who waits meanwhile.

An engine is full when this gateway has `engine_capacity` requests under way on it; other replicas' are not seen. A
model is full when each of its engines not ejected is (all that take requests, when none is not ejected: see
`gateway.routing.balance`). Then a request waits in the line of its model and class, at most `queue_limit` in each. A
place that falls free goes to the next of the model by `gateway.limits.fair_queue`; models that share engines take
turns. Nobody passes those who wait: a newcomer goes on only when no request of its model waits.

Whoever frees a place calls `serve`; so does the sweep, for places that appear in any other way (an engine joined, came
back, stopped draining). A retry does not wait again, so it may go beyond the capacity. Pure: `now` is monotonic
seconds; the engines come from `engines_of`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from specpilot.gateway.limits.fair_queue import FairQueue
from specpilot.gateway.routing.balance import Candidate
from specpilot.gateway.wire.errors import GatewayError, QueueFullError

RETRY_AFTER_MIN_S: Final = 1.0
"""Least seconds that a refused request is told to wait; `Retry-After` has whole ones."""


class Bounded(Candidate, Protocol):
    """An engine, as far as its room goes."""

    outstanding_requests: int


class Waiter(Protocol):
    """Who waits."""

    def proceed(self, now: float) -> None:
        """There is a place: take it at once."""

    def end_with(self, error: GatewayError) -> None:
        """End with `error`."""


B = TypeVar("B", bound=Bounded)


@dataclass(slots=True, eq=False)
class Place:
    """One place in a line. `since` is monotonic seconds."""

    waiter: Waiter
    model: str
    traffic_class: str
    since: float


def without_room(engines: Sequence[B], capacity: int) -> tuple[B, ...] | None:
    """Return those of `engines` that are full, which is usually none; `None` when a request has to wait for one."""
    full = [engine for engine in engines if engine.outstanding_requests >= capacity]
    if not full:
        return ()
    taking = [engine for engine in engines if not engine.is_draining]
    usable = [engine for engine in taking if not engine.outlier_detection.is_ejected] or taking
    return None if usable and all(engine.outstanding_requests >= capacity for engine in usable) else tuple(full)


class Admission(Generic[B]):
    """The places of all models, and the lines for them."""

    def __init__(self, engine_capacity: int, queue_limit: int, engines_of: Callable[[str], Sequence[B]]) -> None:
        """`queue_limit` is per model and class."""
        self._capacity = engine_capacity
        self._limit = queue_limit
        self._engines_of = engines_of
        self._queues: dict[str, FairQueue[Place]] = {}

    def is_open(self, model: str, now: float) -> bool:
        """Whether a newcomer may go to an engine of `model` now."""
        if self._queues:
            self.serve(now)
            if model in self._queues:
                return False
        return without_room(self._engines_of(model), self._capacity) is not None

    def full_engines(self, model: str) -> tuple[B, ...]:
        """Return the engines of `model` to pass over for want of room."""
        return without_room(self._engines_of(model), self._capacity) or ()

    def join(self, place: Place, weight: float, priority: int) -> None:
        """Let `place` wait, by its class's weight and priority. Raises `QueueFullError`."""
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
        """`place` is given up."""
        queue = self._queues.get(place.model)
        if queue is not None:
            queue.drop(place, place.traffic_class)
            if not len(queue):
                del self._queues[place.model]

    def serve(self, now: float) -> None:
        """Let those go on for whom there is room."""
        if not self._queues:
            return
        has_moved = True
        while has_moved:
            has_moved = False
            for model in [*self._queues]:
                if without_room(self._engines_of(model), self._capacity) is None:
                    continue
                queue = self._queues.pop(model, None)
                place = None if queue is None else queue.take()
                if queue is None or place is None:
                    continue
                if len(queue):
                    self._queues[model] = queue  # at the end: models take turns
                has_moved = True
                place.waiter.proceed(now)

    def wait_s(self, model: str, traffic_class: str, now: float) -> float:
        """Return how long a request may have to wait: as long as the first of its line has until now, 1 s at least."""
        queue = self._queues.get(model)
        first = None if queue is None else queue.first(traffic_class)
        return RETRY_AFTER_MIN_S if first is None else max(RETRY_AFTER_MIN_S, now - first.since)

    def waiting(self) -> list[Waiter]:
        """Return everybody who waits."""
        return [place.waiter for queue in self._queues.values() for place in queue]
