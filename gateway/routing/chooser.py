"""The choice of an engine for one request: what keeps its cache, else what has the least to do.

In this order, among the engines of the best rank (`gateway.routing.balance`):

1. the request names a session: the session's home (`gateway.routing.session`);
2. an engine has a beginning of its prompt in its cache: the least busy of those that have the longest one
   (`gateway.routing.prefix`);
3. the least busy, or the less busy of two.

1 and 2 only take an engine within `gateway.routing.balance.bound`; else the next home, or the next shorter beginning,
or 3. An engine that is to be avoided (it is full, or has failed this request) counts there as one beyond every bound.
What is found under 2 or 3 is remembered for 2. Owns the memory and the turns; clock and randomness come by argument.
"""

from collections.abc import Callable, Collection, Sequence
from enum import StrEnum
from math import inf

from specpilot.gateway.routing.balance import C, bound, is_peer, least, two_choices, usable
from specpilot.gateway.routing.prefix import Prefixes, points_of
from specpilot.gateway.routing.session import home, session_of
from specpilot.gateway.wire.body import RequestFacts


class Balance(StrEnum):
    """How to choose among engines that are all the same to a request."""

    LEAST = "least"
    TWO_CHOICES = "two_choices"


class Affinity(StrEnum):
    """What a request may prefer an engine for."""

    NONE = "none"
    SESSION = "session"
    PREFIX = "prefix"
    BOTH = "both"


class Rule(StrEnum):
    """Why an engine was chosen. Spilled: the one preferred first was too busy, or to be avoided."""

    SESSION = "session"
    SESSION_SPILLED = "session_spilled"
    PREFIX = "prefix"
    PREFIX_SPILLED = "prefix_spilled"
    BALANCED = "balanced"


class Chooser:
    """Chooses engines, and counts by which rule."""

    def __init__(self, balance: Balance, affinity: Affinity, draw: Callable[[], int]) -> None:
        """`draw` returns a random whole number, 0 or more, of at least 32 bits."""
        self._is_least = balance is Balance.LEAST
        self._has_session = affinity in (Affinity.SESSION, Affinity.BOTH)
        self._has_prefix = affinity in (Affinity.PREFIX, Affinity.BOTH)
        self.draw = draw
        self._turn = 0
        self.prefixes = Prefixes()
        self.counts: dict[str, int] = dict.fromkeys((rule.value for rule in Rule), 0)

    def choose(
        self,
        candidates: Collection[C],
        facts: RequestFacts,
        session: str | None,
        now: float,
        avoid: Collection[C] = (),
    ) -> C | None:
        """Return the engine for a request; `None` when none of `candidates` but those to `avoid` may be used.

        `session` is what the request's header names; `now` is monotonic seconds.
        """
        engines, busy = usable([item for item in candidates if item not in avoid] if avoid else candidates, now)
        if not engines:
            return None
        preferable, load = engines, busy
        if avoid:
            passed = [item for item in candidates if item in avoid and is_peer(item, engines[0])]
            preferable, load = engines + passed, busy + [inf] * len(passed)
        if self._has_session:
            name = session_of(session, facts.body)
            if name is not None:
                engine, is_home = home(name, preferable, load, bound(busy))
                self.counts[Rule.SESSION if is_home else Rule.SESSION_SPILLED] += 1
                return engine
        points = points_of(facts) if self._has_prefix else []
        rule, found = self._holder(points, preferable, load) if points else (Rule.BALANCED, None)
        engine = self._balanced(engines, busy) if found is None else found
        self.counts[rule] += 1
        if points:
            self.prefixes.learn(points, engine.engine_id)
        return engine

    def _holder(self, points: Sequence[int], engines: Sequence[C], busy: Sequence[float]) -> tuple[Rule, C | None]:
        """Return the engine that has the longest beginning, of those not too busy, and what to call that."""
        rule = Rule.BALANCED
        limit = bound(busy)
        at = {engine.engine_id: index for index, engine in enumerate(engines)}
        for point in reversed(points):
            having = [at[name] for name in self.prefixes.holders(point) if name in at]
            if not having:
                continue
            best = min(having, key=busy.__getitem__)
            if busy[best] <= limit:
                return (Rule.PREFIX if rule is Rule.BALANCED else rule), engines[best]
            rule = Rule.PREFIX_SPILLED
        return rule, None

    def _balanced(self, engines: Sequence[C], busy: Sequence[float]) -> C:
        if self._is_least:
            self._turn += 1
            return least(engines, busy, self._turn)
        return two_choices(engines, busy, self.draw())
