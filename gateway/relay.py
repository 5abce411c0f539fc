"""A request on its way to an engine and its response on the way back: the phases from `connect` on.

Phases: `connect`, `wait` (sent, not one byte of body back), `response`. The engine's head is held back until the first
byte of body, that of an error until the body's end: until then nothing has been said to the client and another engine
may be tried, once, within the retry budget: when the engine cannot be reached, breaks off, says nothing in time or
answers 500, 502, 503 or 504. vLLM sends the head of a stream before it has prefilled anything, so this is where most
retries are possible. A kept connection that the engine closed just as a request went out is replaced by a fresh one,
without this being counted against the engine or the budget; what breaks later than `STALE_S` is a failure like others.
After the first byte there is no retry: see `gateway.delivery`.

The relay holds the engine's side only. What ends a request, and what it counts as, is its `Owner`'s business.
"""

from collections.abc import Callable
from typing import Protocol

from gateway.delivery import Delivery
from gateway.errors import (
    BadEngineResponseError,
    EngineTimeoutError,
    EngineUnavailableError,
    GatewayError,
    StreamBrokenError,
    event_of,
)
from gateway.fleet import Engine
from gateway.framing import Framer, ResponseHead
from gateway.heads import RequestHead
from gateway.intake import RETRY_AFTER_S, Intake
from gateway.leg import Leg
from gateway.limits import Overdue
from gateway.plane import Plane

RETRIED_STATUS = (500, 502, 503, 504)
SMALL_BODY_BYTES = 65_536
STALE_S = 1.0
"""An engine that closed an idle connection is heard of within a round trip of sending; later it broke off its work."""
_SERVER_ERROR = 500


class Front(Protocol):
    """The client's connection, as a relay sees it."""

    @property
    def is_stalled(self) -> bool:
        """Whether the client reads more slowly than it is written to."""

    @property
    def write(self) -> Callable[[bytes], None]:
        """Sends to the client."""


class Owner(Protocol):
    """Whose request it is. `keep_alive`: the client's connection may serve another request after this one."""

    keep_alive: bool

    def own_lines(self) -> bytes:
        """Return the gateway's header lines for the client."""

    def refuse(self, error: GatewayError) -> None:
        """Answer with `error`: nothing has been said to the client before."""

    def finish(self, *, is_cut: bool = False) -> None:
        """The response is over; `is_cut`: close the client's connection, so that it takes nothing for whole."""


class Relay:
    """One request from its choice of an engine on.

    `began_at` is when the gateway could begin with it (monotonic seconds): once it was whole and had a place. `sent_at`
    is 0 until it has gone out. `status` is the engine's, 0 before there is one; `error` says what went wrong after it.
    """

    __slots__ = (
        "_began_at", "_front", "_intake", "_method", "_owner", "_path", "_plane", "_request", "_request_id", "_write",
        "delivery", "engines", "error", "last_at", "leg", "phase", "sent_at", "status",
    )  # fmt: skip

    def __init__(  # noqa: PLR0913, PLR0917 - a request is that much
        self,
        plane: Plane,
        owner: Owner,
        front: Front,
        intake: Intake,
        method: bytes,
        path: str,
        request: RequestHead,
        request_id: bytes,
        began_at: float,
    ) -> None:
        self._plane = plane
        self._owner = owner
        self._front = front
        self._write = front.write
        self._method = method
        self._path = path
        self._request = request
        self._request_id = request_id
        self._intake = intake
        self._began_at = self.last_at = began_at
        self.phase = "connect"
        self.sent_at = 0.0
        self.status = 0
        self.error: str | None = None
        self.engines: list[Engine] = []
        self.leg: Leg | None = None
        self.delivery: Delivery | None = None

    @property
    def overhead_s(self) -> float | None:
        """Seconds from the beginning to the last time the request went out; `None` when it never did."""
        return max(0.0, self.sent_at - self._began_at) if self.sent_at else None

    def begin(self, engine: Engine) -> None:
        """Go to `engine`."""
        self.engines.append(engine)
        self._try(engine)

    def lines(self) -> bytes:
        """Return the header lines that tell the client of the engine."""
        lines = b""
        if self.leg is not None:
            lines = b"x-specpilot-engine: %s\r\n" % self.leg.engine.engine_id.encode()
        if self.sent_at:
            lines += b"x-specpilot-overhead-ms: %.3f\r\n" % (max(0.0, self.sent_at - self._began_at) * 1000)
        return lines

    def pause(self) -> None:
        """The client is slower than the engine."""
        if self.leg is not None:
            self.leg.pause()

    def resume(self) -> None:
        """The client has caught up."""
        self.last_at = self._plane.monotonic()
        if self.leg is not None:
            self.leg.resume()

    def overdue(self, found: Overdue, now: float) -> None:
        """A time-out of the present phase is over."""
        if found.name == "idle" and self._front.is_stalled:
            self._plane.metrics.count_disconnect("stalled")
            self.error = "stalled"
            self._owner.finish(is_cut=True)
            return
        self._plane.metrics.count_upstream_error(f"{found.name}_timeout")
        if found.name == "first_byte" and self.leg is not None:
            self.leg.engine.standing.fail(now, is_connect=False)
            self.delivery = None
            if self._retry():
                return
        self.give_up(EngineTimeoutError(str(found)))

    def give_up(self, error: GatewayError) -> None:
        """End with `error`, as clearly as is still possible."""
        if self.delivery is not None and self.delivery.has_begun:
            self._break(error)
        else:
            self.delivery = None
            self._owner.refuse(error)

    def drop(self) -> None:
        """Let go of the engine, for good. The leg is forgotten, so that no cycle waits for the collector."""
        leg, self.leg = self.leg, None
        if leg is not None:
            leg.drop()

    def _try(self, engine: Engine, *, is_fresh: bool = False) -> None:
        self.phase = "connect"
        self.leg = Leg(self._plane, engine, self._intake.work_tokens, self)
        self.leg.begin(is_fresh=is_fresh)

    def _retry(self) -> bool:
        """Try another engine, if that is allowed and there is one; the engine at fault has been told off already."""
        now = self._plane.monotonic()
        if self.leg is None or len(self.engines) > 1:
            return False
        if not self._plane.budget.allows(now):
            return False  # before the choice, which counts and remembers what it sends where
        engine = self._plane.fleet.pick(self._intake.take_facts(), self._request.session, now, self.engines)
        if engine is None:
            return False
        self._plane.budget.spend(now)
        self.engines.append(engine)
        self._try_again(engine)
        return True

    def _try_again(self, engine: Engine) -> None:
        """Begin at `engine` before the old place is given up: who waits for one must not take the place of both."""
        old = self.leg
        assert old is not None
        self._plane.metrics.retries += 1
        self._try(engine, is_fresh=engine is old.engine)
        old.drop()

    # From the engine: `gateway.leg.Traveller`

    def connected(self) -> None:
        """Send the request."""
        intake, leg = self._intake, self.leg
        assert leg is not None
        self.phase = "wait"
        size = intake.size
        head = b"%s%sx-request-id: %s\r\ncontent-length: %d\r\n\r\n" % (
            leg.engine.head(self._method, self._path.encode()),
            self._request.forwarded,
            self._request_id,
            size,
        )
        self.sent_at = self.last_at = self._plane.monotonic()
        if size <= SMALL_BODY_BYTES and len(intake.body) == 1:
            leg.send((head + bytes(intake.body[0]),))
        else:
            leg.send((head, *intake.body))

    def unconnected(self, reason: str) -> None:
        """The engine cannot be reached."""
        if not self._retry():
            said = "did not accept a connection in time" if reason == "connect_timeout" else "cannot be reached"
            self._owner.refuse(EngineUnavailableError(f"the engine {said}; try again", retry_after_s=RETRY_AFTER_S))

    def head(self, head: ResponseHead, framer: Framer) -> None:
        """The engine's head arrived; nothing of it goes out yet."""
        assert self.leg is not None
        self.last_at = now = self._plane.monotonic()
        if head.status >= _SERVER_ERROR:
            self._plane.metrics.count_upstream_error(f"status_{head.status}")
            self.leg.engine.standing.fail(now, is_connect=False)
            if head.status in RETRIED_STATUS and self._retry():
                return
        self.status = head.status
        owner = self._owner
        self.delivery = Delivery(
            head, framer, owner.own_lines(), is_modern=self._request.is_modern, keep_alive=owner.keep_alive
        )
        owner.keep_alive = self.delivery.keep_alive

    def body(self, raw: bytes, payload: list[bytes]) -> None:
        """Part of the body arrived."""
        delivery = self.delivery
        assert delivery is not None
        self.last_at = now = self._plane.monotonic()
        if self.phase != "response":
            self.phase = "response"
            if self.status < _SERVER_ERROR and self.leg is not None:
                self.leg.engine.standing.restore(now)
        out = delivery.take(raw, payload, now, self._intake.cell.itl)
        if out:
            self._intake.body = ()  # there will be no retry, and a stream may last
            self._write(out)

    def end(self) -> None:
        """The response is whole."""
        delivery, leg = self.delivery, self.leg
        assert delivery is not None
        assert leg is not None
        leg.over()
        if not delivery.is_whole:
            self._plane.metrics.count_upstream_error("closed")
            self._break(StreamBrokenError("the engine closed the stream before its end"))
            return
        if delivery.has_error:
            self._plane.metrics.count_upstream_error("error_event")
            self.error = "error_event"
        out = delivery.end(self._plane.monotonic())
        if out:
            self._write(out)
        self._owner.finish()

    def broken(self, reason: str, *, is_stale: bool) -> None:
        """The response will never be whole."""
        leg = self.leg
        assert leg is not None
        leg.over()
        now = self._plane.monotonic()
        if is_stale and now - self.sent_at <= STALE_S:
            self._try_again(leg.engine)
            return
        self._plane.metrics.count_upstream_error(reason.partition(":")[0])
        leg.engine.standing.fail(now, is_connect=False)
        if self.delivery is not None and self.delivery.has_begun:
            self._break(StreamBrokenError(f"the engine broke the response off ({reason})"))
            return
        self.delivery = None
        if not self._retry():
            said = f"the engine gave no whole answer ({reason}); try again"
            self._owner.refuse(BadEngineResponseError(said, retry_after_s=RETRY_AFTER_S))

    def _break(self, error: GatewayError) -> None:
        """End a response that has begun, with what can still be said."""
        assert self.delivery is not None
        self.error = error.code
        tail = self.delivery.broken(event_of(error, self._path))
        if tail is not None:
            self._write(tail)
        self._owner.finish(is_cut=tail is None)
