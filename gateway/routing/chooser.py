"""Chooses the engine for one request: one with its cache, else the least busy.

The first rule that applies, among the engines of the best rank (`gateway.routing.balance`):

1. The request names a session: the session's home (`gateway.routing.session`).
2. Some engine has a beginning of the request's prompt in its cache: the least busy of the engines with the longest such
   beginning (`gateway.routing.prefix`).
3. Otherwise: the least busy engine, or the less busy of two.

Rules 1 and 2 only take an engine within `gateway.routing.balance.bound`. When the preferred engine is beyond it, rule 1
takes the next home, and rule 2 the next shorter beginning, else rule 3 applies. An engine in `avoid` (it is full, or
has failed this request) counts as beyond every bound.

The choices of rules 2 and 3 are stored for rule 2. Owns that memory and the rotation; clock and randomness are
arguments.
"""

from collections.abc import Callable, Collection, Sequence
from enum import StrEnum
from math import inf

from specpilot.gateway.routing.balance import C, bound, is_peer, least, two_choices, usable
from specpilot.gateway.routing.prefix import Prefixes, points_of
from specpilot.gateway.routing.session import home, session_of
from specpilot.gateway.wire.request_facts import RequestFacts


class Balance(StrEnum):
    """The choice among engines if the request prefers none."""

    LEAST = "least"
    TWO_CHOICES = "two_choices"


class Affinity(StrEnum):
    """The reasons for which a request may prefer an engine."""

    NONE = "none"
    SESSION = "session"
    PREFIX = "prefix"
    BOTH = "both"


class Rule(StrEnum):
    """The rule by which an engine was chosen. Spilled: the engine preferred first was too busy, or to be avoided."""

    SESSION = "session"
    SESSION_SPILLED = "session_spilled"
    PREFIX = "prefix"
    PREFIX_SPILLED = "prefix_spilled"
    BALANCED = "balanced"


class Chooser:
    """Chooses engines, and counts the choices by rule."""

    def __init__(self, balance: Balance, affinity: Affinity, draw: Callable[[], int]) -> None:
        """`draw` returns a random whole number, 0 or more, of at least 32 bits."""
        self._is_least = balance is Balance.LEAST
        self._has_session = affinity in (Affinity.SESSION, Affinity.BOTH)
        self._has_prefix = affinity in (Affinity.PREFIX, Affinity.BOTH)
        self.draw = draw
        self._rotation = 0
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
        """Return the engine for a request; `None` when every usable one of `candidates` is in `avoid`.

        `session` is the value of the request's session header; `now` is monotonic seconds.
        """
        engines, busy = usable([item for item in candidates if item not in avoid] if avoid else candidates, now)
        if not engines:
            return None
        preferable, load = engines, busy
        if avoid:  # rules 1 and 2 also consider avoided engines, so that another choice counts as spilled
            avoided = [item for item in candidates if item in avoid and is_peer(item, engines[0])]
            preferable, load = engines + avoided, busy + [inf] * len(avoided)
        if self._has_session:  # rule 1
            name = session_of(session, facts.body)
            if name is not None:
                engine, is_home = home(name, preferable, load, bound(busy))
                self.counts[Rule.SESSION if is_home else Rule.SESSION_SPILLED] += 1
                return engine
        points = points_of(facts) if self._has_prefix else []
        rule, holder = self._holder(points, preferable, load) if points else (Rule.BALANCED, None)  # rule 2
        engine = self._balanced(engines, busy) if holder is None else holder  # rule 3
        self.counts[rule] += 1
        if points:
            self.prefixes.learn(points, engine.engine_id)
        return engine

    def _holder(self, points: Sequence[int], engines: Sequence[C], busy: Sequence[float]) -> tuple[Rule, C | None]:
        """Return the engine within the bound that has the longest beginning, if any, and the rule to count."""
        rule = Rule.BALANCED
        limit = bound(busy)
        index_of = {engine.engine_id: index for index, engine in enumerate(engines)}
        for point in reversed(points):
            holders = [index_of[name] for name in self.prefixes.holders(point) if name in index_of]
            if not holders:
                continue
            best = min(holders, key=busy.__getitem__)
            if busy[best] <= limit:
                return (Rule.PREFIX if rule is Rule.BALANCED else rule), engines[best]
            rule = Rule.PREFIX_SPILLED
        return rule, None

    def _balanced(self, engines: Sequence[C], busy: Sequence[float]) -> C:
        if self._is_least:
            self._rotation += 1
            return least(engines, busy, self._rotation)
        return two_choices(engines, busy, self.draw())
