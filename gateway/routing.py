"""Which engine gets a request: least outstanding work; and when an engine is left alone for a while.

Choice. Engines that drain get nothing new. Among the rest: those in good standing before ejected ones, then
known load before unknown load, then the least `outstanding work / share`, where work is in estimated tokens and
`share` (0..1] grows back to 1 over `RAMP_S` after an ejection, so that an engine returns slowly. Equals take
turns. An ejected engine is still the answer when there is no other: a refused connection costs little, and a
wrong verdict must not take a model down.

Standing. A failure to connect ejects at once; other failures (closed before its answer, 5xx, time-out before the
first byte) eject after `FAILURES_ALLOWED` in a row. Each further ejection doubles the time, up to `EJECTED_MAX_S`.
Any answer below 500 clears the count: a 4xx is the client's fault. A background probe, not a user's request, tries
an ejected engine when its time is over.

Retries spend from a budget: a share of the requests plus a small floor, so that retries cannot double the load of
a fleet that fails. Pure: `now` is monotonic seconds.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

FAILURES_ALLOWED = 5
EJECTED_MIN_S = 0.5
EJECTED_MAX_S = 30.0
RAMP_S = 10.0
RAMP_FLOOR = 0.1


class Candidate(Protocol):
    """What the choice looks at."""

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

    def succeed(self) -> None:
        """The engine gave an answer below 500, so it lives."""
        self.failures = 0

    def restore(self, now: float) -> None:
        """A probe, or a request for want of a better engine, found the engine alive: let it return, slowly."""
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


def choose(candidates: Iterable[C], now: float, turn: int = 0) -> C | None:
    """Return the best of `candidates` by the law above; `None` when none may be used.

    `turn` says whose turn it is among equals: any number that changes from call to call.
    """
    best: list[C] = []
    best_rank: tuple[bool, bool, float] | None = None
    for candidate in candidates:
        if candidate.is_draining:
            continue
        standing = candidate.standing
        work = candidate.work_tokens
        rank = (standing.is_ejected, work is None, 0.0 if work is None else (work + 1.0) / standing.share(now))
        if best_rank is None or rank < best_rank:
            best, best_rank = [candidate], rank
        elif rank == best_rank:
            best.append(candidate)
    return best[turn % len(best)] if best else None


class RetryBudget:
    """Retries allowed: `ratio` of the requests, and `floor_per_s` a second besides, saved up to `burst`."""

    def __init__(self, ratio: float = 0.1, floor_per_s: float = 1.0, burst: float = 10.0) -> None:
        """`ratio` is 0..1."""
        self._ratio = ratio
        self._floor_per_s = floor_per_s
        self._burst = burst
        self._balance = burst
        self._at: float | None = None

    def earn(self) -> None:
        """A request came in."""
        self._balance = min(self._burst, self._balance + self._ratio)

    def spend(self, now: float) -> bool:
        """Take one retry out; `False` when there is none left."""
        if self._at is not None:
            self._balance = min(self._burst, self._balance + self._floor_per_s * max(0.0, now - self._at))
        self._at = now
        if self._balance < 1.0:
            return False
        self._balance -= 1.0
        return True
