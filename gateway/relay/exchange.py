"""One relayed request, from its head to the end of its response: the only owner of its stream.

`exchange_state` has the table of states. This file has the phases before an engine: `request` (the body arrives) and
`queue` (every engine is full). From the choice of an engine on the request is a `gateway.relay.relay.Relay`, which this
file begins and ends. Every phase has a time-out. In every state the client may leave, which frees its place in the
queue and closes the engine's connection at once, so that the engine aborts.

| fields                              | meaning                                              |
|-------------------------------------|------------------------------------------------------|
| `_relay`, `_place`                  | set in `RELAYED`, in `QUEUED`                        |
| `_prepared`                         | set once the request is whole and decided on         |
| `is_received`                       | the whole body is here, in any state                 |
| `refusal`                           | an error to send when the state leaves `PENDING`     |
| `_is_charged`                       | the key was charged, and `finish` settles the charge |
| `response_complete`, `disconnected` | in `OVER`; the client left                           |
"""

import asyncio
from typing import ClassVar, Final, Protocol

from specpilot.gateway.engines.fleet import Engine
from specpilot.gateway.limits.admission import Admission, Place
from specpilot.gateway.limits.rate_limit import CLIENT_LEFT
from specpilot.gateway.relay import exchange_state, relay
from specpilot.gateway.relay.charge import charge, used_by
from specpilot.gateway.relay.context import RETRY_AFTER_S, GatewayContext
from specpilot.gateway.relay.owner import ResponseSink
from specpilot.gateway.relay.prepared_request import PreparedRequest, pick_engine, prepare
from specpilot.gateway.relay.request_body import RequestBody
from specpilot.gateway.telemetry.outcome import Outcome
from specpilot.gateway.telemetry.tracing import Span
from specpilot.gateway.wire.content_coding import codings_of, decoded
from specpilot.gateway.wire.deadlines import overdue
from specpilot.gateway.wire.errors import (
    DrainingError,
    EngineUnavailableError,
    GatewayError,
    InternalError,
    QueueTimeoutError,
    RequestTimeoutError,
    UnsupportedCodingError,
)
from specpilot.gateway.wire.heads import RequestHead, error_reply, milliseconds
from specpilot.gateway.wire.routes import FORMS, STORED
from specpilot.policy.types import ApiKey

DECODING_TURN_S: Final = 0.001
"""Seconds of decoding one body before other requests are served."""

UNREAD_BYTES: Final = 64 * 1024 * 1024
"""Bytes up to which a rejected body is read and dropped, to keep the connection. A longer one ends it."""


class ExchangeConnection(ResponseSink, Protocol):
    """The client's connection."""

    def reset(self) -> None:
        """Close the client's connection at once, so that the response does not look complete."""

    def finished(self, exchange: "Exchange") -> None:
        """The response of `exchange` has ended."""


class _NeverAwaited:
    """Stands in for the event that uvicorn sets on its own cycles."""

    def set(self) -> None:
        """Do nothing."""


class Exchange:
    """One request and its response. Fields and states: see the module.

    uvicorn's protocol reads `response_complete`, `disconnected`, `keep_alive` and `message_event` of the current
    request of a connection.
    """

    __slots__ = (
        "_body", "_codings", "_connection", "_context", "_error", "_is_charged", "_key", "_last_at", "_method", "_path",
        "_place", "_prepared", "_received_at", "_relay", "_request", "_request_id", "_span", "_state", "_status",
        "_waited_s", "disconnected", "is_received", "keep_alive", "refusal", "response_complete",
    )  # fmt: skip

    message_event: ClassVar[_NeverAwaited] = _NeverAwaited()

    def __init__(
        self, context: GatewayContext, connection: ExchangeConnection, method: bytes, path: str, request: RequestHead
    ) -> None:
        """`request` is the parsed head, `path` the route."""
        self._context = context
        self._connection = connection
        self._method = method
        self._path = path
        self._request = request
        self._request_id = request.request_id or context.new_request_id()
        self._status = 0
        self._last_at = self._received_at = context.monotonic()
        self._state: str = exchange_state.PENDING
        self.refusal: GatewayError | None = None
        self._codings = self._read_coding(request.coding)
        self._body = RequestBody(context, request.forwarded, is_form=path in FORMS, is_encoded=bool(self._codings))
        self._key: ApiKey | None = None
        self._prepared: PreparedRequest | None = None
        self._place: Place | None = None
        self._waited_s = 0.0
        self._is_charged = False
        self._relay: relay.Relay | None = None
        self._error: str | None = None
        self._span: Span | None = None
        self.is_received = False
        self.keep_alive = request.is_modern
        self.response_complete = False
        self.disconnected = False

    def _read_coding(self, stated: str) -> tuple[str, ...]:
        """Return the codings of the body. One that cannot be decoded is rejected before the body arrives."""
        if not stated:
            return ()
        try:
            codings = codings_of(stated)
        except UnsupportedCodingError as error:
            self.refusal = error
            return ()
        if codings and not self._context.decodes_bodies:
            self.refusal = UnsupportedCodingError(stated[:64], decoded="")
        return codings

    @property
    def phase(self) -> str:
        """The phase of the request, for time-outs and the access log."""
        if self._relay is not None:
            return self._relay.phase
        return "queue" if self._state == exchange_state.QUEUED else "request"

    # The client's side

    def limit(self, limit_bytes: int) -> None:
        """Limit the body to `limit_bytes`: the request waits behind another."""
        self._body.limit_bytes = min(self._body.limit_bytes, limit_bytes)

    def authenticate(self) -> None:
        """Check the key in `PENDING`, so that no body without a known key is kept until the request starts."""
        try:
            self._context.key_of(self._request.api_key)
        except GatewayError as error:
            self.refusal = self.refusal or error

    def start(self) -> None:
        """Leave `PENDING`: every earlier request on the connection has its answer."""
        self._state = exchange_state.after(self._state, exchange_state.TURN)
        context, length = self._context, self._request.length
        context.exchanges.add(self)
        self._last_at = context.monotonic()
        self._received_at = self._last_at  # the wait behind another response does not count
        self._span = context.recorder.begin_span(self._method, self._path, self._request)
        if self.refusal is not None:  # not raised: its traceback would hold this frame, which holds the error
            self.local_reply(self.refusal)
            return
        try:
            if context.is_leaving:
                self.keep_alive = False
            if context.is_refusing:
                raise DrainingError("this gateway is shutting down; try again", retry_after_s=RETRY_AFTER_S)
            self._key = context.key_of(self._request.api_key)
            if length is not None and length > self._body.limit_bytes:
                raise self._body.too_large()
        except GatewayError as error:
            self.local_reply(error)
            return
        if self.is_received:
            self._dispatch()
        elif self._request.is_expecting:
            self._request.is_expecting = False
            self._connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def feed(self, data: bytes) -> None:
        """Part of the request's body arrived."""
        if self.response_complete or self.refusal is not None:
            return
        self._last_at = self._context.monotonic()
        error = self._body.feed(data)
        if error is not None:
            self.local_reply_in_turn(error)

    def body_released(self) -> None:
        """Stop counting the body: its answer has begun."""
        self._body.release()

    def local_reply_in_turn(self, error: GatewayError) -> None:
        """Answer with `error` instead of serving the request; in `PENDING`, when it starts."""
        self._body.drop()
        self.refusal = self.refusal or error
        if self._state != exchange_state.PENDING:
            self.local_reply(self.refusal)

    def received(self) -> None:
        """The request is whole."""
        self.is_received = True
        self._received_at = self._last_at = self._context.monotonic()
        if self._state == exchange_state.OPEN:
            self._dispatch()

    def client_left(self) -> None:
        """The client closed its connection: stop the engine at once."""
        if self.response_complete:
            return
        self._context.metrics.count_disconnect(self.phase)
        self.disconnected = True
        self._status = CLIENT_LEFT
        self.finish()

    def drop(self) -> None:
        """The request will not start: its connection ends with an answer before it."""
        self._body.drop()
        self.refusal = None

    def pause(self) -> None:
        """The client is slower than the engine."""
        if self._relay is not None:
            self._relay.pause()

    def resume(self) -> None:
        """The client has caught up."""
        if self._relay is not None:
            self._relay.resume()

    def local_reply(self, error: GatewayError) -> None:
        """Answer with `error`. Nothing has been sent to the client before."""
        request = self._request
        if not self.is_received and (
            request.is_chunked or request.is_expecting or (request.length or 0) > UNREAD_BYTES
        ):
            self.keep_alive = False  # the rest of the body is unbounded, too long to drop, or may never come
        self._status = error.status
        self._error = error.code
        if error.refusal is not None:
            self._context.metrics.count_refusal(error.refusal)
        is_head = self._method == b"HEAD"
        lines = self.own_lines()
        self._connection.write(error_reply(error, lines, keep_alive=self.keep_alive, is_head=is_head, path=self._path))
        self.finish()

    def sweep(self, now: float) -> None:
        """Act on an expired time-out."""
        trip = self._relay
        expired = overdue(
            self._context.limits,
            self.phase,
            now,
            last_at=self._last_at if trip is None else trip.last_at,
            received_at=self._received_at,
            sent_at=0.0 if trip is None else trip.sent_at,
            is_stream=self._prepared is not None and self._prepared.is_stream,
        )
        if expired is None or self.response_complete:
            return
        if trip is not None:
            trip.overdue(expired, now)
            return
        if self._place is not None:
            self._waited_s = now - self._place.since
            message = f"no engine of `{self._place.model}` had room: {expired}; try again later"
            self.local_reply(QueueTimeoutError(message, retry_after_s=self._waited_s))
            return
        self.keep_alive = False
        self.local_reply(RequestTimeoutError(f"the request did not arrive: {expired}"))

    def own_lines(self) -> bytes:
        """Return the gateway's header lines for the client."""
        lines = b"x-request-id: %s\r\n" % self._request_id
        if self._prepared is not None:
            lines += self._prepared.own
        if self._request.origin is not None and self._context.origins is not None:
            lines += self._context.origins.lines(self._request.origin)
        if self._waited_s:
            lines += b"x-specpilot-queue-ms: %s\r\n" % milliseconds(self._waited_s)
        return lines if self._relay is None else lines + self._relay.lines()

    # To the engine

    async def _decode(self, parts: tuple[bytes, ...], codings: tuple[str, ...]) -> None:
        """Decode the body, with pauses for other requests, and continue with it."""
        context = self._context
        try:
            turn_began_at = context.monotonic()
            for piece in decoded(parts, codings, self._body.limit_bytes):
                error = self._body.feed(piece) if piece else None
                if error is not None:
                    self.local_reply(error)
                    return
                if context.monotonic() - turn_began_at > DECODING_TURN_S:
                    await asyncio.sleep(0)
                    turn_began_at = context.monotonic()
                if self.response_complete:  # the client left, or a time-out ended the request, during the pause
                    return
        except Exception as error:  # noqa: BLE001 - no caller awaits this task, and the client must get an answer
            self.fail(error)
            return
        self._dispatch()

    def _dispatch(self) -> None:
        context = self._context
        if self._codings:
            codings, self._codings = self._codings, ()
            task = self._decode(self._body.finish_encoded(), codings)
            context.spawn(asyncio.get_running_loop().create_task(task))
            return
        body, outline = self._body.finish()
        try:
            prepared = prepare(context, self._path, self._request, self._key, body, outline)
            self._prepared = prepared
            prepared.cell.in_flight += 1
            if self._key is not None and self._key.has_limits:
                self._is_charged = charge(context, self._key, prepared, self._received_at)
            context.budget.earn(self._received_at)
            admission = None if self._path in STORED else context.admission  # these generate nothing
            if admission is None or admission.is_open(prepared.model, self._received_at):
                self._go(prepared)
            else:
                self._wait(prepared, admission)
        except Exception as error:  # noqa: BLE001 - the client must get an answer in any case
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Answer with the client's form of `error`, and log a fault of the gateway."""
        if isinstance(error, GatewayError):
            self.end_with(error)
            return
        asyncio.get_running_loop().call_exception_handler({"message": "a request failed", "exception": error})
        self.end_with(InternalError("the gateway failed; its log says why"))

    def _wait(self, prepared: PreparedRequest, admission: Admission[Engine]) -> None:
        """Wait for an engine with room."""
        policy = self._context.class_policy(prepared.model, prepared.traffic_class)
        place = Place(self, prepared.model, prepared.traffic_class, self._received_at)
        admission.join(place, policy.weight, policy.priority)
        self._place = place
        self._state = exchange_state.after(self._state, exchange_state.QUEUE)
        prepared.facts = None  # the parsed body is large; it is parsed again for the choice of an engine
        prepared.cell.queued += 1

    def proceed(self, now: float) -> None:
        """An engine has room: leave the queue and send the request."""
        prepared = self._prepared
        assert prepared is not None
        self._state = exchange_state.after(self._state, exchange_state.ROOM)
        self._leave_queue(now)
        try:
            self._go(prepared)
        except Exception as error:  # noqa: BLE001 - the client must get an answer in any case
            self.fail(error)

    def _leave_queue(self, now: float) -> None:
        place, prepared, admission = self._place, self._prepared, self._context.admission
        if place is None or prepared is None or admission is None:
            return
        self._place = None
        admission.leave(place)
        self._waited_s = max(0.0, now - place.since)
        prepared.cell.queued -= 1
        prepared.cell.queue.observe(self._waited_s)

    def _go(self, prepared: PreparedRequest) -> None:
        """Choose an engine and begin the relay."""
        context = self._context
        avoided = () if context.admission is None else context.admission.full_engines(prepared.model)
        engine = pick_engine(context, prepared, self._request.session, avoided)
        if engine is None:
            message = f"no engine of `{prepared.model}` takes requests now; try again"
            raise EngineUnavailableError(message, param="model", retry_after_s=RETRY_AFTER_S)
        self._relay = relay.Relay(
            context,
            self,
            self._connection,
            prepared,
            self._method,
            self._path,
            self._request,
            self._request_id,
            self._received_at + self._waited_s,
        )
        self._state = exchange_state.after(self._state, exchange_state.GO)
        self._relay.begin(engine)

    def engine_ejected(self, engine: Engine) -> None:
        """`engine` was ejected because it does not answer."""
        if self._relay is not None:
            self._relay.engine_ejected(engine)

    # The end

    def end_with(self, error: GatewayError) -> None:
        """End with `error`, as clearly as is still possible."""
        if self._relay is not None:
            self._relay.end_with(error)
        elif not self.response_complete:
            self.local_reply(error)

    def finish(self, *, is_reset: bool = False) -> None:
        """The response has ended. `is_reset`: close the client's connection, as the response is not complete."""
        self.response_complete = True
        self.refusal = None  # a raised error holds its frames, which hold this exchange
        context, trip, prepared = self._context, self._relay, self._prepared
        context.exchanges.discard(self)
        if prepared is not None:
            prepared.cell.in_flight -= 1
        outcome = self._outcome()  # before the state changes: the phase depends on it
        self._state = exchange_state.after(self._state, exchange_state.END)
        if self._place is not None:
            self._leave_queue(outcome.ended_at)
        outcome.waited_s = self._waited_s
        context.recorder.record(outcome, None if prepared is None else prepared.cell, self._span)
        if self._is_charged and self._key is not None and prepared is not None:
            used = used_by(trip, self._path, prepared, outcome.status)
            context.rates.settle(self._key.key_id, prepared.charged_tokens, used, outcome.ended_at)
        if trip is not None:
            trip.drop()
        self._relay = None
        self._prepared = None
        self._body.drop()  # the connection still holds its last exchange, so release an incomplete body
        if is_reset:
            self._connection.reset()
        self._connection.finished(self)

    def _outcome(self) -> Outcome:
        """Return the outcome of the request, without the time in the queue."""
        trip, prepared = self._relay, self._prepared
        outcome = Outcome(
            request_id=self._request_id,
            method=self._method,
            path=self._path,
            status=self._status or (0 if trip is None else trip.status),
            received_at=self._received_at,
            ended_at=self._context.monotonic(),
            phase=self.phase,
            error=self._error or (None if trip is None else trip.error),
        )
        outcome.client_host = self._connection.client_host
        if self._key is not None:
            outcome.key_id = self._key.key_id
        if prepared is not None:
            outcome.model = prepared.model
            outcome.requested_model = prepared.requested_model
            outcome.traffic_class = prepared.traffic_class
            outcome.is_stream = prepared.is_stream
            outcome.max_tokens = prepared.max_tokens
        if trip is not None:
            trip.describe(outcome)
        return outcome
