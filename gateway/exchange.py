"""One proxied request, from its head to the end of its response: the only owner of its stream.

Phases: `request` (the body is coming in), `connect`, `wait` (sent, not one byte of body back), `response`. In each
of them the client may leave, which closes the engine's connection at once (an engine aborts on that), and each has
its time-out.

The engine's head is held back until the first byte of body, or the body's end: until then nothing has been said to
the client and another engine may be tried, once, within the retry budget. vLLM sends the head of a stream before it
has prefilled anything, so this is where most retries are possible. A kept connection that the engine closed just
as a request went out is replaced by a fresh one, without this being counted against the engine or the budget. After
the first byte there is no retry: see `gateway.delivery`.
"""

import asyncio
from typing import ClassVar, Protocol

from gateway.delivery import Delivery
from gateway.errors import (
    BadEngineResponseError,
    BodyTooLargeError,
    DrainingError,
    EngineTimeoutError,
    EngineUnavailableError,
    GatewayError,
    InternalError,
    RequestTimeoutError,
    StreamBrokenError,
    event_of,
)
from gateway.fleet import Engine
from gateway.framing import Framer, ResponseHead
from gateway.heads import RequestHead, error_reply
from gateway.intake import RETRY_AFTER_S, Intake, take_in
from gateway.leg import Leg
from gateway.limits import overdue
from gateway.plane import Plane
from gateway.record import Outcome, record
from policy.types import ApiKey

RETRIED_STATUS = (502, 503, 504)
CLIENT_LEFT = 499
SMALL_BODY_BYTES = 65_536
UNREAD_BYTES = 64 * 1024 * 1024
_SERVER_ERROR = 500


class Front(Protocol):
    """The client's side of an exchange."""

    @property
    def is_stalled(self) -> bool:
        """Whether the client reads more slowly than it is written to."""

    def write(self, data: bytes) -> None:
        """Send to the client."""

    def cut(self) -> None:
        """Close the client's connection in the middle, so that it cannot take what came for whole."""

    def finished(self, exchange: "Exchange") -> None:
        """The response of `exchange` is over."""


class _NobodyWaits:
    """Stands in for the event that uvicorn sets on its own cycles."""

    def set(self) -> None:
        """Do nothing."""


class Exchange:
    """One request and its response.

    `response_complete`, `disconnected`, `keep_alive` and `message_event` are what uvicorn's protocol looks at in
    whatever is in progress on its connection. `refusal` is what to answer in any case, once it is its turn.
    """

    __slots__ = (
        "_chunks", "_delivery", "_engines", "_front", "_intake", "_key", "_last_at", "_leg", "_limit_bytes", "_method",
        "_path", "_phase", "_plane", "_received_at", "_request", "_request_id", "_sent_at", "_size", "_status",
        "disconnected", "is_active", "is_received", "keep_alive", "refusal", "response_complete",
    )  # fmt: skip

    message_event: ClassVar[_NobodyWaits] = _NobodyWaits()

    def __init__(self, plane: Plane, front: Front, method: bytes, path: str, request: RequestHead) -> None:
        """`request` is the head as read, `path` the route."""
        self._plane = plane
        self._front = front
        self._method = method
        self._path = path
        self._request = request
        self._request_id = request.request_id or plane.new_request_id()
        self._phase = "request"
        self._status = 0
        self._last_at = self._received_at = plane.monotonic()
        self._sent_at = 0.0
        self._chunks: list[bytes] = []
        self._size = 0
        self._limit_bytes = plane.limits.max_body_bytes
        self._key: ApiKey | None = None
        self._intake: Intake | None = None
        self._engines: list[Engine] = []
        self._leg: Leg | None = None
        self._delivery: Delivery | None = None
        self.refusal: GatewayError | None = None
        self.is_active = False
        self.is_received = False
        self.keep_alive = request.is_modern
        self.response_complete = False
        self.disconnected = False

    # The client's side

    def limit(self, limit_bytes: int) -> None:
        """Take a body of at most `limit_bytes`: the request waits behind another."""
        self._limit_bytes = min(self._limit_bytes, limit_bytes)

    def start(self) -> None:
        """Begin: every earlier request on the connection has had its answer."""
        self.is_active = True
        plane, length = self._plane, self._request.length
        plane.exchanges.add(self)
        self._last_at = plane.monotonic()
        try:
            if self.refusal is not None:
                raise self.refusal
            if plane.is_refusing:
                self.keep_alive = False
                raise DrainingError("this gateway is shutting down; try again", retry_after_s=RETRY_AFTER_S)
            self._key = plane.key_of(self._request.api_key)
            if length is not None and length > self._limit_bytes:
                raise self._too_large()
        except GatewayError as error:
            self.refuse(error)
            return
        if self.is_received:
            self._dispatch()
        elif self._request.is_expecting:
            self._request.is_expecting = False
            self._front.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def feed(self, data: bytes) -> None:
        """Part of the request's body arrived."""
        if self.response_complete or self.refusal is not None:
            return
        self._size += len(data)
        self._last_at = self._plane.monotonic()
        if self._size <= self._limit_bytes:
            self._chunks.append(data)
            return
        self._chunks.clear()
        self.refusal = self._too_large()
        if self.is_active:
            self.refuse(self.refusal)

    def received(self) -> None:
        """The request is whole."""
        self.is_received = True
        self._received_at = self._last_at = self._plane.monotonic()
        if self.is_active and not self.response_complete:
            self._dispatch()

    def client_left(self) -> None:
        """The client closed its connection: stop the engine at once."""
        if self.response_complete:
            return
        self._plane.metrics.count_disconnect(self._phase)
        self.disconnected = True
        self._status = CLIENT_LEFT
        self._finish()

    def pause(self) -> None:
        """The client is slower than the engine."""
        if self._leg is not None:
            self._leg.pause()

    def resume(self) -> None:
        """The client has caught up."""
        self._last_at = self._plane.monotonic()
        if self._leg is not None:
            self._leg.resume()

    def refuse(self, error: GatewayError) -> None:
        """Answer with `error`; nothing has been said to the client before."""
        request = self._request
        if not self.is_received and (
            request.is_chunked or request.is_expecting or (request.length or 0) > UNREAD_BYTES
        ):
            self.keep_alive = False  # the rest is endless, too long to read for nothing, or may never come
        self._status = error.status
        is_head = self._method == b"HEAD"
        self._front.write(error_reply(error, self._own_lines(), keep_alive=self.keep_alive, is_head=is_head))
        self._finish()

    def sweep(self, now: float) -> None:
        """Enforce the time-outs."""
        found = overdue(
            self._plane.limits,
            self._phase,
            now,
            last_at=self._last_at,
            received_at=self._received_at,
            sent_at=self._sent_at,
        )
        if found is None or self.response_complete:
            return
        if found.name == "request":
            self.keep_alive = False
            self.refuse(RequestTimeoutError(f"the request did not arrive: {found}"))
            return
        if found.name == "idle" and self._front.is_stalled:
            self._plane.metrics.count_disconnect("stalled")
            self._finish(is_cut=True)
            return
        self._plane.metrics.count_upstream_error(f"{found.name}_timeout")
        if found.name == "first_byte" and self._leg is not None:
            self._leg.engine.standing.fail(now, is_connect=False)
        self.give_up(EngineTimeoutError(str(found)))

    def _too_large(self) -> BodyTooLargeError:
        said = f"the request body is larger than {self._limit_bytes} bytes (--max-body-bytes); send less"
        return BodyTooLargeError(said)

    def _own_lines(self) -> bytes:
        lines = b"x-request-id: %s\r\n" % self._request_id
        if self._intake is not None:
            lines += self._intake.own
        if self._leg is not None:
            lines += b"x-specpilot-engine: %s\r\n" % self._leg.engine.engine_id.encode()
        if self._sent_at:
            lines += b"x-specpilot-overhead-ms: %.3f\r\n" % (max(0.0, self._sent_at - self._received_at) * 1000)
        return lines

    # To the engine

    def _dispatch(self) -> None:
        chunks, self._chunks = self._chunks, []
        body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        try:
            intake = take_in(self._plane, self._path, self._request, self._key, body)
            self._intake = intake
            intake.cell.in_flight += 1
            self._plane.budget.earn()
            engine = self._plane.fleet.pick(intake.facts.model, self._plane.monotonic())
            if engine is None:
                said = f"no engine of `{intake.facts.model}` takes requests now; try again"
                self.refuse(EngineUnavailableError(said, param="model", retry_after_s=RETRY_AFTER_S))
                return
            self._engines.append(engine)
            self._try(engine)
        except GatewayError as error:
            self.refuse(error)
        except Exception as error:  # noqa: BLE001 - the client is owed an answer whatever happened
            asyncio.get_running_loop().call_exception_handler({"message": "dispatch failed", "exception": error})
            self.refuse(InternalError("the gateway failed; its log says why"))

    def _try(self, engine: Engine, *, is_fresh: bool = False) -> None:
        assert self._intake is not None
        self._phase = "connect"
        self._leg = Leg(self._plane, engine, self._intake.facts.work_tokens, self)
        self._leg.begin(is_fresh=is_fresh)

    def _retry(self) -> bool:
        """Try another engine, if that is allowed and there is one; the engine at fault has been told off already."""
        now = self._plane.monotonic()
        if self._intake is None or self._leg is None or len(self._engines) > 1:
            return False
        engine = self._plane.fleet.pick(self._intake.facts.model, now, self._engines)
        if engine is None or not self._plane.budget.spend(now):
            return False
        self._engines.append(engine)
        self._try_again(engine)
        return True

    def _try_again(self, engine: Engine) -> None:
        assert self._leg is not None
        self._plane.metrics.retries += 1
        self._leg.drop()
        self._try(engine, is_fresh=engine is self._leg.engine)

    # From the engine: `gateway.leg.Traveller`

    def connected(self) -> None:
        """Send the request."""
        intake, leg = self._intake, self._leg
        assert intake is not None
        assert leg is not None
        self._phase = "wait"
        size = intake.size
        head = b"%s%sx-request-id: %s\r\ncontent-length: %d\r\n\r\n" % (
            leg.engine.head(self._method, self._path.encode()),
            self._request.forwarded,
            self._request_id,
            size,
        )
        self._sent_at = self._last_at = self._plane.monotonic()
        if size <= SMALL_BODY_BYTES and len(intake.body) == 1:
            leg.send((head + bytes(intake.body[0]),))
        else:
            leg.send((head, *intake.body))

    def unconnected(self, reason: str) -> None:
        """The engine cannot be reached."""
        if not self._retry():
            said = "did not accept a connection in time" if reason == "connect_timeout" else "cannot be reached"
            self.refuse(EngineUnavailableError(f"the engine {said}; try again", retry_after_s=RETRY_AFTER_S))

    def head(self, head: ResponseHead, framer: Framer) -> None:
        """The engine's head arrived; nothing of it goes out yet."""
        assert self._leg is not None
        standing = self._leg.engine.standing
        self._last_at = now = self._plane.monotonic()
        if head.status >= _SERVER_ERROR:
            self._plane.metrics.count_upstream_error(f"status_{head.status}")
            standing.fail(now, is_connect=False)
            if head.status in RETRIED_STATUS and self._retry():
                return
        else:
            standing.succeed()
        self._status = head.status
        own, is_modern = self._own_lines(), self._request.is_modern
        self._delivery = Delivery(head, framer, own, is_modern=is_modern, keep_alive=self.keep_alive)
        self.keep_alive = self._delivery.keep_alive

    def body(self, raw: bytes, payload: list[bytes]) -> None:
        """Part of the body arrived."""
        delivery, intake = self._delivery, self._intake
        assert delivery is not None
        assert intake is not None
        self._last_at = now = self._plane.monotonic()
        self._phase = "response"
        out = delivery.take(raw, payload, now, intake.cell.itl)
        if out:
            self._front.write(out)

    def end(self) -> None:
        """The response is whole."""
        delivery, leg = self._delivery, self._leg
        assert delivery is not None
        assert leg is not None
        leg.over()
        if not delivery.is_whole:
            self._plane.metrics.count_upstream_error("closed")
            self._break(StreamBrokenError("the engine closed the stream before its end"))
            return
        if delivery.has_error:
            self._plane.metrics.count_upstream_error("error_event")
        out = delivery.end(self._plane.monotonic())
        if out:
            self._front.write(out)
        self._finish()

    def broken(self, reason: str, *, is_stale: bool) -> None:
        """The response will never be whole."""
        leg = self._leg
        assert leg is not None
        leg.over()
        if is_stale:
            self._try_again(leg.engine)
            return
        self._plane.metrics.count_upstream_error(reason.partition(":")[0])
        leg.engine.standing.fail(self._plane.monotonic(), is_connect=False)
        if self._delivery is not None and self._delivery.has_begun:
            self._break(StreamBrokenError(f"the engine broke the response off ({reason})"))
            return
        self._delivery = None
        if not self._retry():
            said = f"the engine gave no whole answer ({reason}); try again"
            self.refuse(BadEngineResponseError(said, retry_after_s=RETRY_AFTER_S))

    # The end

    def give_up(self, error: GatewayError) -> None:
        """End with `error`, as clearly as is still possible."""
        if self._delivery is not None and self._delivery.has_begun:
            self._break(error)
        else:
            self._delivery = None
            self.refuse(error)

    def _break(self, error: GatewayError) -> None:
        """End a response that has begun, with what can still be said."""
        assert self._delivery is not None
        self.keep_alive = False
        tail = self._delivery.broken(event_of(error, self._path))
        if tail is not None:
            self._front.write(tail)
        self._finish(is_cut=tail is None)

    def _finish(self, *, is_cut: bool = False) -> None:
        self.response_complete = True
        plane, leg, intake = self._plane, self._leg, self._intake
        plane.exchanges.discard(self)
        if intake is not None:
            intake.cell.in_flight -= 1
        outcome = Outcome(
            request_id=self._request_id,
            method=self._method,
            path=self._path,
            status=self._status,
            phase=self._phase,
            received_at=self._received_at,
            sent_at=self._sent_at,
            ended_at=plane.monotonic(),
            engines_tried=len(self._engines),
            engine_id=None if leg is None else leg.engine.engine_id,
            key=self._key,
            intake=intake,
            delivery=self._delivery,
        )
        record(plane, outcome)
        if leg is not None:
            leg.drop()
        self._leg = None
        self._intake = None
        self._delivery = None
        if is_cut:
            self._front.cut()
        self._front.finished(self)
