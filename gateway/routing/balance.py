"""Which engines may get a request, and which of them is the least busy.

Rank. Engines that drain get nothing new. Among the rest: those not ejected before ejected ones, then
known load before unknown load. Only the best rank that there is takes part in any choice. An ejected engine is
still the answer when there is no other: a refused connection costs little, and a wrong verdict must not take a model
down.

Busy. `(outstanding work + 1) / share`, where work is in estimated tokens and `share` (0..1] grows back to 1 over
`RAMP_S` after an ejection, so that an engine returns slowly. `least` takes the least busy, equals in turn;
`two_choices` the less busy of two drawn at random, so that many gateways that cannot see one another's requests do
not all run to the same engine. An engine that is preferred for what it keeps (`gateway.routing.chooser`) may be busier
than the best, up to `BOUND_RATIO * least + BOUND_TOKENS`: a few requests more cost a batch little, and never half again
as much as elsewhere.

Pure: `now` is monotonic seconds.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Protocol, TypeVar

from specpilot.gateway.routing.outlier_detection import OutlierDetection

BOUND_RATIO: Final = 1.5
"""How many times as busy as the least busy a preferred engine may be."""

BOUND_TOKENS: Final = 8192.0
"""How many tokens of work busier than that it may be besides: more keeps caches warm, and queues longer."""


class Candidate(Protocol):
    """What the choice looks at. `engine_id` is the same in every gateway, and `engine_hash` follows from it."""

    @property
    def engine_id(self) -> str:
        """The engine's name."""

    @property
    def engine_hash(self) -> int:
        """`gateway.routing.session.hash_of` the name."""

    @property
    def work_tokens(self) -> float | None:
        """Outstanding work in tokens; `None` when it is not known, which ranks last."""

    @property
    def is_draining(self) -> bool:
        """Whether the engine asked for nothing new."""

    @property
    def outlier_detection(self) -> OutlierDetection:
        """Whether the engine is ejected, and how much of its load it should carry."""


C = TypeVar("C", bound=Candidate)


def usable(candidates: Iterable[C], now: float) -> tuple[list[C], list[float]]:
    """Return those of the best rank among `candidates`, and how busy each of them is. Empty when none may be used."""
    engines: list[C] = []
    busy: list[float] = []
    best_rank = 4
    for candidate in candidates:
        if candidate.is_draining:
            continue
        outlier_detection = candidate.outlier_detection
        work = candidate.work_tokens
        rank = 2 * outlier_detection.is_ejected + (work is None)
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
    """Whether `candidate` could take requests as well as `chosen` if it had room: it is not ejected unless that is."""
    return not candidate.is_draining and candidate.outlier_detection.is_ejected <= chosen.outlier_detection.is_ejected


def least(engines: Sequence[C], busy: Sequence[float], turn: int) -> C:
    """Return the least busy; `turn` says whose turn it is among equals: any number that changes from call to call."""
    lowest = min(busy)
    if busy.count(lowest) == 1:
        return engines[busy.index(lowest)]
    equals = [engine for engine, tokens in zip(engines, busy, strict=True) if tokens == lowest]
    return equals[turn % len(equals)]


def two_choices(engines: Sequence[C], busy: Sequence[float], draw: int) -> C:
    """Return the less busy of two different engines; `draw` is a random whole number, 0 or more."""
    count = len(engines)
    if count == 1:
        return engines[0]
    draw, first = divmod(draw, count)
    second = (first + 1 + draw % (count - 1)) % count
    return engines[second if busy[second] < busy[first] else first]


def bound(busy: Sequence[float]) -> float:
    """Return how busy an engine may be and still be preferred for what it keeps, where others are this `busy`."""
    return BOUND_RATIO * min(busy) + BOUND_TOKENS
