"""Finds the engines that may get a request, and the least busy of them. Pure: `now` is monotonic seconds.

Rank. A draining engine gets no new request. Among the others, engines in service come before ejected ones, and engines
of known load before engines of unknown load. Only the engines of the best rank present take part in a choice. When all
engines are ejected, one of them is still chosen: a refused connection costs little, and a wrong ejection must not make
a model unavailable.

Load. `busy = (outstanding work + 1) / share`. Work is in estimated tokens. `share` (0..1] grows back to 1 over `RAMP_S`
after an ejection, so that an engine returns slowly. `least` takes the least busy engine, equals by rotation.
`two_choices` takes the less busy of two random engines, so that gateways that cannot see each other's requests do not
all choose the same engine.

Bound. An engine that is preferred for its cache (`gateway.routing.chooser`) may be busier than the least busy one, up
to `BOUND_RATIO * least + BOUND_TOKENS`. The constant term allows a few more requests, which cost a batch little. The
ratio limits a larger load to 1.5 times that of the least busy engine.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Protocol, TypeVar

from specpilot.gateway.routing.outlier_detection import OutlierDetection

BOUND_RATIO: Final = 1.5
"""Largest load of a preferred engine, in multiples of the load of the least busy one."""

BOUND_TOKENS: Final = 8192.0
"""Tokens of work above that ratio that a preferred engine may have. With a larger value more requests find their cache,
and queues are longer."""


class Candidate(Protocol):
    """The properties of an engine that the choice reads. `engine_id` is the same in every gateway."""

    @property
    def engine_id(self) -> str:
        """The engine's name."""

    @property
    def engine_hash(self) -> int:
        """`gateway.routing.session.hash_of` the engine's name."""

    @property
    def work_tokens(self) -> float | None:
        """Outstanding work in tokens; `None` when it is unknown, which ranks last."""

    @property
    def is_draining(self) -> bool:
        """Whether the engine takes no new request."""

    @property
    def outlier_detection(self) -> OutlierDetection:
        """Whether the engine is ejected, and its share of normal load."""


C = TypeVar("C", bound=Candidate)


def usable(candidates: Iterable[C], now: float) -> tuple[list[C], list[float]]:
    """Return the candidates of the best rank, and how busy each of them is. Both are empty when all of them drain."""
    engines: list[C] = []
    busy: list[float] = []
    best_rank = 4
    for candidate in candidates:
        if candidate.is_draining:
            continue
        outlier_detection = candidate.outlier_detection
        work = candidate.work_tokens
        rank = 2 * outlier_detection.is_ejected + (work is None)  # ejection weighs more than unknown load
        if rank > best_rank:
            continue
        if rank < best_rank:
            best_rank = rank
            engines.clear()
            busy.clear()
        engines.append(candidate)
        busy.append(0.0 if work is None else (work + 1.0) / outlier_detection.share(now))
    return engines, busy


def is_peer(candidate: Candidate, chosen: Candidate) -> bool:
    """Whether `candidate` would be as eligible as `chosen` if it had room: it is not ejected, or `chosen` is too."""
    return not candidate.is_draining and candidate.outlier_detection.is_ejected <= chosen.outlier_detection.is_ejected


def least(engines: Sequence[C], busy: Sequence[float], rotation: int) -> C:
    """Return the least busy engine. Among equals `rotation` decides: any number that changes from call to call."""
    lowest = min(busy)
    if busy.count(lowest) == 1:
        return engines[busy.index(lowest)]
    equals = [engine for engine, tokens in zip(engines, busy, strict=True) if tokens == lowest]
    return equals[rotation % len(equals)]


def two_choices(engines: Sequence[C], busy: Sequence[float], draw: int) -> C:
    """Return the less busy of two different engines; `draw` is a random whole number, 0 or more."""
    count = len(engines)
    if count == 1:
        return engines[0]
    draw, first = divmod(draw, count)
    second = (first + 1 + draw % (count - 1)) % count
    return engines[second if busy[second] < busy[first] else first]


def bound(busy: Sequence[float]) -> float:
    """Return the largest load of a preferred engine when the engines are this `busy`."""
    return BOUND_RATIO * min(busy) + BOUND_TOKENS
