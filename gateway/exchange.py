"""One proxied request, from its head to the end of its response: the only owner of its stream.

Here are the phases before an engine: `request` (the body is coming in) and `queue` (every engine is full). From the
choice of an engine on the request is a `gateway.relay.Relay`, which this file begins and ends. In every phase the
client may leave, which frees its place in the queue and closes the engine's connection at once (an engine aborts on
that), and each has its time-out.
"""

import asyncio
from typing import ClassVar, Protocol

from gateway import relay
from gateway.admission import Admission, Place
from gateway.errors import (
    BodyTooLargeError,
    DrainingError,
    EngineUnavailableError,
    GatewayError,
    InternalError,
    QueueTimeoutError,
    RateLimitError,
    RequestTimeoutError,
)
from gateway.fleet import Engine
from gateway.heads import RequestHead, error_reply, rate_lines
from gateway.intake import RETRY_AFTER_S, Intake, take_in
from gateway.limits import overdue
from gateway.plane import Plane
from gateway.record import CLIENT_LEFT, Outcome, record, used_tokens
from gateway.tracing import Span
from policy.types import ApiKey

UNREAD_BYTES = 64 * 1024 * 1024
PARTS = 256
"""A body in more parts than that is kept as one: a part of two bytes takes 56 as an object of its own."""


class Front(relay.Front, Protocol):
    """The client's side of an exchange."""

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
        "_chunks", "_error", "_front", "_intake", "_is_charged", "_key", "_last_at", "_limit_bytes", "_method", "_path",
        "_place", "_plane", "_received_at", "_relay", "_request", "_request_id", "_size", "_span", "_status",
        "_waited_s", "_whole", "disconnected", "is_active", "is_received", "keep_alive", "refusal", "response_complete",
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
        self._status = 0
        self._last_at = self._received_at = plane.monotonic()
        self._chunks: list[bytes] = []
        self._whole: bytearray | None = None  # instead of `_chunks`, once those are too many
        self._size = 0
        self._limit_bytes = plane.limits.max_body_bytes
        self._key: ApiKey | None = None
        self._intake: Intake | None = None
        self._place: Place | None = None
        self._waited_s = 0.0
        self._is_charged = False
        self._relay: relay.Relay | None = None
        self._error: str | None = None
        self._span: Span | None = None
        self.refusal: GatewayError | None = None
        self.is_active = False
        self.is_received = False
        self.keep_alive = request.is_modern
        self.response_complete = False
        self.disconnected = False

    @property
    def phase(self) -> str:
        """Where the request is now."""
        if self._relay is not None:
            return self._relay.phase
        return "request" if self._place is None else "queue"

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
        if self.is_received:
            self._received_at = self._last_at  # what it waited behind another response is not its own
        if plane.tracing is not None:
            self._span = plane.tracing.begin(self._method, self._path, self._request)
        try:
            if self.refusal is not None:
                raise self.refusal
            if plane.is_leaving:
                self.keep_alive = False
            if plane.is_refusing:
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
        if self._size > self._limit_bytes:
            self.refuse_in_turn(self._too_large())
        elif self._whole is not None:
            self._whole.extend(data)
        else:
            self._chunks.append(data)
            if len(self._chunks) > PARTS:
                self._whole = bytearray(b"".join(self._chunks))
                self._chunks.clear()

    def refuse_in_turn(self, error: GatewayError) -> None:
        """The request will never be whole, or is not to be: answer with `error` once it is its turn."""
        self._chunks.clear()
        self._whole = None
        self.refusal = self.refusal or error
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
        self._plane.metrics.count_disconnect(self.phase)
        self.disconnected = True
        self._status = CLIENT_LEFT
        self.finish()

    def pause(self) -> None:
        """The client is slower than the engine."""
        if self._relay is not None:
            self._relay.pause()

    def resume(self) -> None:
        """The client has caught up."""
        if self._relay is not None:
            self._relay.resume()

    def refuse(self, error: GatewayError) -> None:
        """Answer with `error`; nothing has been said to the client before."""
        request = self._request
        if not self.is_received and (
            request.is_chunked or request.is_expecting or (request.length or 0) > UNREAD_BYTES
        ):
            self.keep_alive = False  # the rest is endless, too long to read for nothing, or may never come
        self._status = error.status
        self._error = error.code
        if error.refusal is not None:
            self._plane.metrics.count_refusal(error.refusal)
        is_head = self._method == b"HEAD"
        self._front.write(error_reply(error, self.own_lines(), keep_alive=self.keep_alive, is_head=is_head))
        self.finish()

    def sweep(self, now: float) -> None:
        """Enforce the time-outs."""
        trip = self._relay
        found = overdue(
            self._plane.limits,
            self.phase,
            now,
            last_at=self._last_at if trip is None else trip.last_at,
            received_at=self._received_at,
            sent_at=0.0 if trip is None else trip.sent_at,
        )
        if found is None or self.response_complete:
            return
        if trip is not None:
            trip.overdue(found, now)
            return
        if self._place is not None:
            self._waited_s = now - self._place.since
            said = f"no engine of `{self._place.model}` had room: {found}; try again later"
            self.refuse(QueueTimeoutError(said, retry_after_s=self._waited_s))
            return
        self.keep_alive = False
        self.refuse(RequestTimeoutError(f"the request did not arrive: {found}"))

    def _too_large(self) -> BodyTooLargeError:
        said = f"the request body is larger than {self._limit_bytes} bytes "
        if self._limit_bytes < self._plane.limits.max_body_bytes:
            said += "and was sent before the answer to the request before it; wait for that, or use another connection"
        else:
            said += "(--max-body-bytes); send less"
        return BodyTooLargeError(said)

    def own_lines(self) -> bytes:
        """See `gateway.relay.Owner`."""
        lines = b"x-request-id: %s\r\n" % self._request_id
        if self._intake is not None:
            lines += self._intake.own
        if self._waited_s:
            lines += b"x-specpilot-queue-ms: %.3f\r\n" % (self._waited_s * 1000)
        return lines if self._relay is None else lines + self._relay.lines()

    # To the engine

    def _dispatch(self) -> None:
        chunks, self._chunks = self._chunks, []
        whole, self._whole = self._whole, None
        body = bytes(whole) if whole is not None else chunks[0] if len(chunks) == 1 else b"".join(chunks)
        try:
            intake = take_in(self._plane, self._path, self._request, self._key, body)
            self._intake = intake
            intake.cell.in_flight += 1
            if self._key is not None and self._key.has_limits:
                self._charge(self._key, intake)
            self._plane.budget.earn(self._received_at)
            if self._plane.admission is None or self._plane.admission.is_open(intake.model, self._received_at):
                self._go(intake)
            else:
                self._wait(intake, self._plane.admission)
        except Exception as error:  # noqa: BLE001 - the client is owed an answer whatever happened
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if isinstance(error, GatewayError):
            self.refuse(error)
            return
        asyncio.get_running_loop().call_exception_handler({"message": "dispatch failed", "exception": error})
        self.refuse(InternalError("the gateway failed; its log says why"))

    def _charge(self, key: ApiKey, intake: Intake) -> None:
        """Count the request against its key's limits, or refuse it."""
        meter = self._plane.rates.meter(key, intake.work_tokens, self._received_at)
        denied = meter.admit(intake.work_tokens, self._received_at)
        intake.own += rate_lines(meter)
        if denied is None:
            self._is_charged = True
            return
        said = f"rate limit reached: {denied.limit} {denied.kind} per minute for this API key; try again later"
        raise RateLimitError(said, denied.kind, denied.retry_after_s)

    def _wait(self, intake: Intake, admission: Admission[Engine]) -> None:
        """Wait for an engine with room."""
        wanted = self._plane.class_policy(intake.model, intake.traffic_class)
        place = Place(self, intake.model, intake.traffic_class, self._received_at)
        admission.join(place, wanted.weight, wanted.priority)
        self._place = place
        intake.facts = None
        intake.cell.queued += 1

    def proceed(self, now: float) -> None:
        """See `gateway.admission.Waiter`."""
        intake = self._intake
        assert intake is not None
        self._leave_queue(now)
        try:
            self._go(intake)
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(error)

    def _leave_queue(self, now: float) -> None:
        place, intake, admission = self._place, self._intake, self._plane.admission
        if place is None or intake is None or admission is None:
            return
        self._place = None
        admission.leave(place)
        self._waited_s = max(0.0, now - place.since)
        intake.cell.queued -= 1
        intake.cell.queue.observe(self._waited_s)

    def _go(self, intake: Intake) -> None:
        """Choose an engine and go to it."""
        plane, model = self._plane, intake.model
        avoided = () if plane.admission is None else plane.admission.full_engines(model)
        engine = plane.fleet.pick(intake.take_facts(), self._request.session, plane.monotonic(), avoided)
        if engine is None:
            said = f"no engine of `{model}` takes requests now; try again"
            raise EngineUnavailableError(said, param="model", retry_after_s=RETRY_AFTER_S)
        self._relay = relay.Relay(
            plane,
            self,
            self._front,
            intake,
            self._method,
            self._path,
            self._request,
            self._request_id,
            self._received_at + self._waited_s,
        )
        self._relay.begin(engine)

    # The end

    def give_up(self, error: GatewayError) -> None:
        """End with `error`, as clearly as is still possible."""
        if self._relay is not None:
            self._relay.give_up(error)
        elif not self.response_complete:
            self.refuse(error)

    def finish(self, *, is_cut: bool = False) -> None:
        """See `gateway.relay.Owner`."""
        self.response_complete = True
        plane, trip, intake = self._plane, self._relay, self._intake
        plane.exchanges.discard(self)
        if intake is not None:
            intake.cell.in_flight -= 1
        outcome = Outcome(
            request_id=self._request_id,
            method=self._method,
            path=self._path,
            status=self._status or (0 if trip is None else trip.status),
            received_at=self._received_at,
            ended_at=plane.monotonic(),
            key=self._key,
            intake=intake,
            phase=self.phase,
            relay=trip,
            error=self._error or (None if trip is None else trip.error),
            span=self._span,
        )
        if self._place is not None:
            self._leave_queue(outcome.ended_at)
        outcome.waited_s = self._waited_s
        record(plane, outcome)
        if self._is_charged and self._key is not None and intake is not None:
            estimate = intake.work_tokens
            plane.rates.settle(self._key.key_id, estimate, used_tokens(outcome, intake), outcome.ended_at)
        if trip is not None:
            trip.drop()
        self._relay = None
        self._intake = None
        self._chunks.clear()  # of a body that will not be whole: the connection keeps its last exchange
        self._whole = None
        if is_cut:
            self._front.cut()
        self._front.finished(self)
