"""The ejection of an engine: its causes, its duration, and its end. Pure: `now` is monotonic seconds.

| state | condition | next state |
|---|---|---|
| in service | not `is_ejected` | ejected, by one of the causes below; suspected, by failures of one client |
| suspected | `is_suspect`, in service | in service, by a good answer or probe; ejected, by a bad probe of `/health` |
| ejected | `is_ejected` | after `ejected_until`: returning, by a good probe or answer; ejected again, by failures |
| returning | `returned_at` under `RAMP_S` ago | in service, by time; ejected as from service, for a longer time |

An ejected engine still gets requests when its model has no other engine.

Causes of an ejection:

1. A failed connection, of a request or a probe: one.
2. A time-out before the first byte, when no byte of any response came from the engine since that request was sent: one,
   and for `EJECTED_MAX_S`. The engine's server may still answer probes while its model hangs, and other requests there
   would wait for the whole time-out.
3. Other failures before an answer (closed, 5xx, 401 and 403, a time-out before the first byte, an error event as the
   first of a stream): `FAILURES_ALLOWED` in a row, if they may be the engine's fault (see below).
4. Failures within answers (an error event, broken off): `FAILURES_ALLOWED` in a row, of several clients or several
   bodies. They have a count of their own, because each of these answers has a good beginning; a complete answer resets
   it.
5. Probes without an answer in time: `PROBES_ALLOWED` in a row.

Each further ejection lasts twice as long, up to `EJECTED_MAX_S`.

The beginning of a good answer resets the failures of 3; a 4xx is good, because the client is at fault. A connection
resets nothing, since the kernel accepts connections for a hung process. Neither does a head, since a server may send
the head of a stream while its model hangs.

A failure may be the request's own fault: vLLM answers 500 to some grammars. So one client, or one body, ejects no
engine:

| a row of failures of 3 comes from | effect |
|---|---|
| a request that another engine answered, or rejected credentials (`source` is `None`) | ejected |
| several clients | ejected |
| one client, several bodies | suspected: a probe of `/health` decides (`settle`) |
| one client, one body | none; the next different failure decides |

A request that fails at two engines counts at neither: the relay does not report it.

An ejection ends by a background probe after its time, or by the first answer that begins after its time. An answer that
begins earlier was requested before the ejection, and may still fail like the earlier ones.
"""

from dataclasses import dataclass, field
from typing import Final

FAILURES_ALLOWED: Final = 5
"""Failures in a row, other than connecting, before an ejection. With a smaller number one bad request could eject an
engine."""

SOURCES_MAX: Final = 16
"""Number of different requests that are kept of a row of failures. Two would be enough."""

PROBES_ALLOWED: Final = 2
"""Probes in a row that may time out before an ejection. A single one may be due to a short load."""

EJECTED_MIN_S: Final = 0.5
"""Seconds of the first ejection: the delay until a restarted engine is tried again."""

EJECTED_MAX_S: Final = 30.0
"""Seconds of the longest ejection. With a larger value a restart is detected later; with a smaller one dead engines get
more probes."""

RAMP_S: Final = 10.0
"""Seconds over which a returning engine's share grows to 1. With a larger value the engine gets fewer requests while
its cache is empty, and the other engines more."""

RAMP_FLOOR: Final = 0.1
"""The share (0..1] of normal load with which an engine returns."""


Source = tuple[str, int]
"""The client of a failed request, and a hash of its body."""


@dataclass(slots=True)
class OutlierDetection:
    """The state of one engine: see the module. Times are monotonic seconds."""

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
            if None in self._sources or len({item[0] for item in self._sources if item is not None}) > 1:
                self.eject(now)
            elif len(self._sources) > 1:
                self.is_suspect = True
        return self.is_ejected

    def time_out(self, now: float) -> None:
        """A first byte did not come in time, and no byte of any other response since the request was sent (2)."""
        self.failures += 1
        self.eject(now, EJECTED_MAX_S)

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
        """A probe could not connect, or got no answer in time (1 and 5); return whether this ejects the engine now."""
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
