"""When an engine is ejected, for how long, and how it returns. Pure: `now` is monotonic seconds.

A failure to connect ejects at once, and so does a time-out before the first byte of an engine from which nothing at all
came since that request went out, for the longest time: its server may answer probes while its model hangs, and what
waits there would wait for the longest of time-outs. Other failures before an answer (closed, 5xx, 401 and 403, time-out
before the first byte, an error event as the first of a stream) eject after `FAILURES_ALLOWED` in a row, where they may
be the engine's: see below. Each further
ejection doubles the time, up to `EJECTED_MAX_S`. The beginning of a good answer clears the count: a 4xx is the client's
fault. A connection clears nothing, and neither does a head: the kernel still accepts for an engine that hangs, and a
server whose engine hangs may still send the head of a stream. Failures within answers (an error event, broken off) are
counted apart, as each has a good beginning; they eject after as many in a row, which a whole answer ends.

A failure may be the request's own fault: vLLM answers 500 to some grammars. So one client, or one body, ejects nobody:

| a row of failures is of | then |
|---|---|
| a request that another engine of the model answered; refused credentials: `source` is `None` | ejected |
| several clients | ejected |
| one client, several bodies | the engine is suspected: a probe of its `/health` decides (`settle`) |
| one client, one body | nothing; the next different failure decides |

A request that fails at two engines counts at neither: whoever relays it does not report it. Of failures within answers,
which are not tried elsewhere, several clients or several bodies eject.

An ejection ends by a background probe, which tries the engine when its time is over, or by the first answer that begins
after that: what begins earlier was asked before the ejection, and may fail as what came before it. A probe that finds
nobody listening ejects at once; `PROBES_ALLOWED` probes in a row without an answer in time eject too.
"""

from dataclasses import dataclass, field
from typing import Final

FAILURES_ALLOWED: Final = 5
"""Failures in a row, other than connecting, before an ejection. Fewer would eject an engine for one bad request."""

SOURCES_MAX: Final = 16
"""Different requests that are remembered of a row of failures. Two would do."""

PROBES_ALLOWED: Final = 2
"""Probes in a row that may time out before an ejection. One may have met a busy moment."""

EJECTED_MIN_S: Final = 0.5
"""Seconds of the first ejection: how soon a restarted engine is tried again."""

EJECTED_MAX_S: Final = 30.0
"""Seconds of the longest ejection. Longer notices a restart later; shorter sends more probes to dead engines."""

RAMP_S: Final = 10.0
"""Seconds over which a returning engine's share grows to 1. Longer spares its empty cache; shorter spares the others.
"""

RAMP_FLOOR: Final = 0.1
"""The share (0..1] of normal load with which an engine returns."""


Source = tuple[str, int]
"""The client of a failed request, and a hash of its body."""


@dataclass(slots=True)
class OutlierDetection:
    """The state of one engine by its recent behaviour: see the module. Times are monotonic seconds."""

    failures: int = 0
    is_suspect: bool = False
    _sources: set[Source | None] = field(default_factory=set)
    _stream_sources: set[Source | None] = field(default_factory=set)
    stream_failures: int = 0
    probe_timeouts: int = 0
    ejections: int = 0
    ejected_until: float = 0.0
    is_ejected: bool = False
    returned_at: float | None = None

    def restore(self, now: float) -> None:
        """The engine answered a probe: if it was ejected, return it to service."""
        if self.is_ejected:
            self.is_ejected = False
            self.returned_at = now
            self.stream_failures = 0
            self._stream_sources.clear()
        self._end_row()
        self.probe_timeouts = 0

    def begin_answer(self, now: float) -> None:
        """A good answer has begun."""
        if self.is_ejected and now >= self.ejected_until:
            self.restore(now)
        if self.failures:
            self._end_row()
        self.probe_timeouts = 0

    def fail(self, now: float, *, is_connect: bool, source: Source | None = None) -> bool:
        """A request failed before its answer (1 and 3); return whether the engine is ejected now.

        `source` is `None` when the fault is certainly the engine's.
        """
        self.failures += 1
        if is_connect:
            self.eject(now)
            return True
        _add(self._sources, source)
        if self.failures >= FAILURES_ALLOWED:
            if None in self._sources or len({found[0] for found in self._sources if found is not None}) > 1:
                self.eject(now)
            elif len(self._sources) > 1:
                self.is_suspect = True
        return self.is_ejected

    def time_out(self, now: float, *, is_silent: bool) -> bool:
        """A first byte did not come in time (2 and 3); return whether the engine is ejected now.

        `is_silent`: no byte of any other response came either since the request was sent.
        """
        if is_silent:
            self.failures += 1
            self.eject(now, EJECTED_MAX_S)
            return True
        return self.fail(now, is_connect=False)

    def settle(self, now: float, *, is_healthy: bool) -> None:
        """A probe of `/health` has ended for an engine under suspicion."""
        self._end_row()
        if not is_healthy:
            self.eject(now)

    def fail_stream(self, now: float, source: Source | None = None) -> bool:
        """An answer failed after a good beginning (4); return whether the engine is ejected now."""
        self.stream_failures += 1
        _add(self._stream_sources, source)
        is_shared = None in self._stream_sources or len(self._stream_sources) > 1
        if self.stream_failures >= FAILURES_ALLOWED and is_shared:
            self.eject(now)
        return self.is_ejected

    def complete_stream(self) -> None:
        """An answer is complete."""
        if self.stream_failures:
            self.stream_failures = 0
            self._stream_sources.clear()

    def _end_row(self) -> None:
        self.failures = 0
        self.is_suspect = False
        self._sources.clear()

    def fail_probe(self, now: float, *, is_connect: bool) -> bool:
        """A probe could not connect, or got no answer in time (1 and 5); return whether that ejects the engine now."""
        was_ejected = self.is_ejected
        self.probe_timeouts += 1
        if is_connect or was_ejected or self.probe_timeouts >= PROBES_ALLOWED:
            self.eject(now)
        return self.is_ejected and not was_ejected

    def eject(self, now: float, least_s: float = 0.0) -> None:
        """Eject the engine for at least `least_s`. The time doubles while the engine fails soon after each return."""
        if self.is_ejected and now < self.ejected_until:
            return  # one outage fails many requests at once, and must double the time once
        if self.returned_at is not None and now - self.returned_at > RAMP_S:
            self.ejections = 0  # it served well after its last return
        self.ejected_until = now + max(least_s, min(EJECTED_MAX_S, EJECTED_MIN_S * 2.0 ** min(self.ejections, 10)))
        self.ejections += 1
        self.is_ejected = True

    def share(self, now: float) -> float:
        """Return the share (0..1] of normal load that the engine should carry."""
        if self.returned_at is None:
            return 1.0
        elapsed_s = now - self.returned_at
        if elapsed_s >= RAMP_S:
            return 1.0
        return RAMP_FLOOR + (1.0 - RAMP_FLOOR) * max(0.0, elapsed_s) / RAMP_S


def _add(sources: set[Source | None], source: Source | None) -> None:
    if len(sources) < SOURCES_MAX:
        sources.add(source)
