"""Which engines may get a request, which of them is the least busy, and when an engine is left alone for a while.

Rank. Engines that drain get nothing new. Among the rest: those in good standing before ejected ones, then
known load before unknown load. Only the best rank that there is takes part in any choice. An ejected engine is
still the answer when there is no other: a refused connection costs little, and a wrong verdict must not take a model
down.

Busy. `(outstanding work + 1) / share`, where work is in estimated tokens and `share` (0..1] grows back to 1 over
`RAMP_S` after an ejection, so that an engine returns slowly. `least` takes the least busy, equals in turn;
`two_choices` the less busy of two drawn at random, so that many gateways that cannot see one another's requests do
not all run to the same engine. An engine that is preferred for what it keeps (`gateway.choice`) may be busier than
the best, up to `BOUND_RATIO * least + BOUND_TOKENS`: a few requests more cost a batch little, and never half again
as much as elsewhere.

Standing. A failure to connect ejects at once; other failures (closed before its answer, 5xx, time-out before the
first byte) eject after `FAILURES_ALLOWED` in a row. Each further ejection doubles the time, up to `EJECTED_MAX_S`.
The first byte of an answer below 500 clears the count: a 4xx is the client's fault. A connection clears nothing, and
neither does a head: the kernel still accepts for an engine that hangs, and a server whose engine hangs may still send
the head of a stream. A background probe, not a user's request, tries an ejected engine when its time is over.

Retries spend from a budget: a share of the requests plus a small floor, so that retries cannot double the load of
a fleet that fails. What the requests of `SAVED_S` earned can be saved up, because an engine that dies fails at once all
that has gathered on it. Pure: `now` is monotonic seconds.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

FAILURES_ALLOWED = 5
EJECTED_MIN_S = 0.5
EJECTED_MAX_S = 30.0
RAMP_S = 10.0
RAMP_FLOOR = 0.1
SAVED_S = 60.0
BOUND_RATIO = 1.5
BOUND_TOKENS = 8192.0


class Candidate(Protocol):
    """What the choice looks at. `engine_id` is the same in every gateway, and `engine_hash` follows from it."""

    @property
    def engine_id(self) -> str:
        """The engine's name."""

    @property
    def engine_hash(self) -> int:
        """`gateway.affinity.hash_of` the name."""

    @property
    def work_tokens(self) -> float | None:
        """Outstanding work in tokens; `None` when it is not known, which ranks last."""

    @property
    def is_draining(self) -> bool:
        """Whether the engine asked for nothing new."""

    @property
    def standing(self) -> "Standing":
        """How the engine has behaved."""


C = TypeVar("C", bound=Candidate)


@dataclass(slots=True)
class Standing:
    """What one engine's recent behaviour has earned it. Times are monotonic seconds."""

    failures: int = 0
    ejections: int = 0
    ejected_until: float = 0.0
    is_ejected: bool = False
    returned_at: float | None = None

    def restore(self, now: float) -> None:
        """A probe, or an answer below 500, found the engine alive: if it was ejected, let it return, slowly."""
        if self.is_ejected:
            self.is_ejected = False
            self.returned_at = now
        self.failures = 0

    def fail(self, now: float, *, is_connect: bool) -> bool:
        """The engine failed; return whether it is ejected now."""
        self.failures += 1
        if is_connect or self.failures >= FAILURES_ALLOWED:
            self.eject(now)
        return self.is_ejected

    def eject(self, now: float) -> None:
        """Leave the engine alone for a time that doubles while it keeps failing soon after its return."""
        if self.is_ejected and now < self.ejected_until:
            return
        if self.returned_at is not None and now - self.returned_at > RAMP_S:
            self.ejections = 0
        self.ejected_until = now + min(EJECTED_MAX_S, EJECTED_MIN_S * 2.0 ** min(self.ejections, 10))
        self.ejections += 1
        self.is_ejected = True

    def share(self, now: float) -> float:
        """Return the share (0..1] of its normal load that the engine should carry."""
        if self.returned_at is None:
            return 1.0
        elapsed_s = now - self.returned_at
        if elapsed_s >= RAMP_S:
            return 1.0
        return RAMP_FLOOR + (1.0 - RAMP_FLOOR) * max(0.0, elapsed_s) / RAMP_S


def usable(candidates: Iterable[C], now: float) -> tuple[list[C], list[float]]:
    """Return those of the best rank among `candidates`, and how busy each of them is. Empty when none may be used."""
    engines: list[C] = []
    busy: list[float] = []
    best_rank = 4
    for candidate in candidates:
        if candidate.is_draining:
            continue
        standing = candidate.standing
        work = candidate.work_tokens
        rank = 2 * standing.is_ejected + (work is None)
        if rank > best_rank:
            continue
        if rank < best_rank:
            best_rank = rank
            engines.clear()
            busy.clear()
        engines.append(candidate)
        busy.append(0.0 if work is None else (work + 1.0) / standing.share(now))
    return engines, busy


def is_peer(candidate: Candidate, chosen: Candidate) -> bool:
    """Whether `candidate` could take requests as well as `chosen` if it had room: it is in no worse standing."""
    return not candidate.is_draining and candidate.standing.is_ejected <= chosen.standing.is_ejected


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


class RetryBudget:
    """Retries allowed: `ratio` of the requests, and `floor_per_s` a second besides.

    Saved up are at most `burst`, and `ratio` of the requests of the last `SAVED_S` (counted with exponential decay).
    """

    def __init__(self, ratio: float = 0.1, floor_per_s: float = 1.0, burst: float = 10.0) -> None:
        """`ratio` is 0..1."""
        self._ratio = ratio
        self._floor_per_s = floor_per_s
        self._burst = burst
        self._balance = burst
        self._recent = 0.0
        self._at: float | None = None

    def earn(self, now: float) -> None:
        """A request came in."""
        self._settle(now)
        self._recent += 1.0
        self._balance += self._ratio

    def allows(self, now: float) -> bool:
        """Whether there is a retry left to `spend`."""
        self._settle(now)
        return self._balance >= 1.0

    def spend(self, now: float) -> bool:
        """Take one retry out; `False` when there is none left."""
        if not self.allows(now):
            return False
        self._balance -= 1.0
        return True

    def _settle(self, now: float) -> None:
        """Let the time since the last call count: the floor earns, and requests are forgotten."""
        elapsed_s = 0.0 if self._at is None else max(0.0, now - self._at)
        self._at = now
        self._recent *= math.exp(-elapsed_s / SAVED_S)
        most = self._burst + self._ratio * self._recent
        self._balance = min(most, self._balance + self._floor_per_s * elapsed_s)
