"""One relayed request, from its head to the end of its response: the only owner of its stream.

| phase       | until                                                                        |
|-------------|------------------------------------------------------------------------------|
| `request`   | the body has arrived, and an engine is chosen or every engine is full        |
| `queue`     | an engine has room; `_place` is set                                          |
| the relay's | the end; `_relay` is set at the choice of an engine, and has phases of its own |

Every phase has a time-out, and ends early with a local reply or when the client disconnects. This frees its place in
the queue and closes the engine's connection at once, so that the engine aborts.

| fields                              | meaning                                                |
|-------------------------------------|--------------------------------------------------------|
| `_prepared`                         | set once the request is whole and decided on           |
| `is_received`                       | the whole body has arrived, in any phase               |
| `_is_charged`                       | the key was charged, and `finish` settles the charge   |
| `response_complete`                 | the response has ended, in any way                     |
"""

import asyncio

from specpilot.gateway.engines.fleet import Engine
from specpilot.gateway.limits.admission import Admission, Place
from specpilot.gateway.limits.rate_limit import CLIENT_LEFT
from specpilot.gateway.relay.accounting import charge, record_end
from specpilot.gateway.relay.context import GatewayContext
from specpilot.gateway.relay.engine_choice import first_engine
from specpilot.gateway.relay.owner import Connection
from specpilot.gateway.relay.prepared_request import PreparedRequest
from specpilot.gateway.relay.relay import Relay
from specpilot.gateway.relay.request_body import RequestBody
from specpilot.gateway.relay.request_decisions import prepare
from specpilot.gateway.telemetry.outcome import Outcome
from specpilot.gateway.telemetry.tracing import Span
from specpilot.gateway.wire.deadlines import overdue
from specpilot.gateway.wire.errors import GatewayError, QueueTimeoutError, RequestTimeoutError
from specpilot.gateway.wire.heads import RequestHead, error_reply, milliseconds
from specpilot.gateway.wire.routes import STORED
from specpilot.policy.api_key import ApiKey


class Exchange:
    """One request and its response. Fields and states: see the module."""

    __slots__ = (
        "_body",
        "_connection",
        "_context",
        "_head",
        "_is_charged",
        "_key",
        "_last_at",
        "_outcome",
        "_place",
        "_prepared",
        "_relay",
        "_span",
        "is_received",
        "keep_alive",
        "response_complete",
    )  # fmt: skip

    def __init__(
        self, context: GatewayContext, connection: Connection, request: RequestHead, *, keep_alive: bool
    ) -> None:
        """`request` is the parsed head."""
        self._context = context
        self._connection = connection
        self._head = request
        if not request.request_id:
            request.request_id = context.new_request_id()
        self._last_at = now = context.monotonic()
        self._outcome = Outcome(
            request_id=request.request_id,
            method=request.method,
            path=request.path,
            status=0,
            phase="request",
            received_at=now,
            ended_at=now,
            error=None,
        )
        self._outcome.client_host = connection.client_host
        self._body = RequestBody(context, request)
        self._key: ApiKey | None = None
        self._prepared: PreparedRequest | None = None
        self._place: Place | None = None
        self._is_charged = False
        self._relay: Relay | None = None
        self._span: Span | None = None
        self.is_received = False
        self.keep_alive = keep_alive
        self.response_complete = False

    @property
    def phase(self) -> str:
        """The phase of the request, for time-outs and the access log."""
        if self._relay is not None:
            return self._relay.phase
        return "request" if self._place is None else "queue"

    # The client's side

    def start(self, refusal: GatewayError | None = None) -> None:
        """Begin with the head alone, or answer with `refusal`."""
        context, request = self._context, self._head
        context.exchanges.add(self)
        self._span = context.recorder.start_span(request.method, request.path, request)
        if refusal is None and request.coding:  # what cannot be decoded is rejected before the body arrives
            refusal = self._body.read_codings()
        if refusal is not None:  # not raised: its traceback would hold this frame, which holds the error
            self.local_reply(refusal)
            return
        try:
            if context.is_leaving:
                self.keep_alive = False
            self._key = context.admit(request.api_key)
            if request.length is not None and request.length > context.bounds.max_body_bytes:
                raise self._body.too_large()
        except GatewayError as error:
            self.local_reply(error)
            return
        if request.is_expecting:
            request.is_expecting = False
            self._connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def feed(self, data: bytes) -> None:
        """Part of the request's body arrived."""
        if self.response_complete:
            return
        self._last_at = self._context.monotonic()
        error = self._body.feed(data)
        if error is not None:
            self.local_reply(error)

    def body_released(self) -> None:
        """Stop counting the body: its answer has begun."""
        self._body.release()

    def received(self) -> None:
        """The request is whole."""
        self.is_received = True
        self._outcome.received_at = self._last_at = self._context.monotonic()
        self._dispatch()

    def client_left(self) -> None:
        """The client closed its connection: stop the engine at once."""
        if self.response_complete:
            return
        self._context.metrics.count_disconnect(self.phase)
        self._outcome.status = CLIENT_LEFT
        self.finish()

    def pause(self) -> None:
        """The client is slower than the engine."""
        if self._relay is not None:
            self._relay.pause()

    def resume(self) -> None:
        """The client has read enough."""
        if self._relay is not None:
            self._relay.resume()

    def local_reply(self, error: GatewayError) -> None:
        """Answer with `error`. Nothing has been sent to the client before."""
        if not self.is_received and self._body.has_endless_rest:
            self.keep_alive = False
        self._outcome.status, self._outcome.error = error.status, error.code
        if error.refusal is not None:
            self._context.metrics.count_refusal(error.refusal)
        lines, path, is_head = self.header_lines(), self._head.path, self._head.method == b"HEAD"
        self._connection.write(error_reply(error, lines, keep_alive=self.keep_alive, is_head=is_head, path=path))
        self.finish()

    def sweep(self, now: float) -> None:
        """Act on an expired time-out."""
        relay = self._relay
        expired = overdue(
            self._context.bounds,
            self.phase,
            now,
            last_at=self._last_at if relay is None else relay.last_at,
            received_at=self._outcome.received_at,
            sent_at=0.0 if relay is None else relay.sent_at,
            is_stream=self._prepared is not None and self._prepared.is_stream,
        )
        if expired is None or self.response_complete:
            return
        if relay is not None:
            relay.overdue(expired, now)
        elif self._place is not None:
            self._outcome.waited_s = now - self._place.since
            message = f"no engine of `{self._place.model}` had room: {expired}; try again later"
            self.local_reply(QueueTimeoutError(message, retry_after_s=self._outcome.waited_s))
        else:
            self.keep_alive = False
            self.local_reply(RequestTimeoutError(f"the request did not arrive: {expired}"))

    def header_lines(self) -> bytes:
        """Return the gateway's header lines for the client."""
        lines = b"x-request-id: %s\r\n" % self._head.request_id
        if self._prepared is not None:
            lines += self._prepared.header_lines
        if self._head.origin is not None and self._context.origins is not None:
            lines += self._context.origins.lines(self._head.origin)
        if self._outcome.waited_s:
            lines += b"x-specpilot-queue-ms: %s\r\n" % milliseconds(self._outcome.waited_s)
        return lines if self._relay is None else lines + self._relay.lines()

    # To the engine

    async def _decode(self) -> None:
        """Decode the body and continue with it, unless the request has ended in a pause."""
        try:
            await self._body.decode()
        except Exception as error:  # noqa: BLE001 - no caller awaits this task, and the client must get an answer
            self.fail(error)
            return
        if not self.response_complete:
            self._dispatch()

    def _dispatch(self) -> None:
        """Decide on the whole request, then send it or queue it. A compressed body is decoded first."""
        context = self._context
        if self._body.is_encoded:
            context.spawn(asyncio.get_running_loop().create_task(self._decode()))
            return
        body, outline = self._body.finish()
        try:
            prepared = self._prepared = prepare(context, self._head, self._key, body, outline)
            prepared.cell.in_flight += 1
            if self._key is not None and self._key.has_limits:
                self._is_charged = charge(context, self._key, prepared, self._outcome.received_at)
            context.budget.earn(self._outcome.received_at)
            admission = None if prepared.path in STORED else context.admission  # these generate nothing
            if admission is None or admission.is_open(prepared.model, self._outcome.received_at):
                self._go(prepared)
            else:
                self._join_queue(admission, prepared)
        except Exception as error:  # noqa: BLE001 - the client must get an answer in any case
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Answer with the client's form of `error`, and log a fault of the gateway."""
        self.end_with(self._context.reply_to(error))

    def proceed(self, now: float) -> None:
        """An engine has room: leave the queue and send the request."""
        prepared = self._prepared
        assert prepared is not None
        self._leave_queue(now)
        try:
            self._go(prepared)
        except Exception as error:  # noqa: BLE001 - the client must get an answer in any case
            self.fail(error)

    def _join_queue(self, admission: Admission[Engine], prepared: PreparedRequest) -> None:
        """Wait in the queue of the request's model and class. Raises `QueueFullError`."""
        policy = self._context.class_policy(prepared.model, prepared.traffic_class)
        place = Place(self, prepared.model, prepared.traffic_class, self._outcome.received_at)
        admission.join(place, policy.weight, policy.priority)
        prepared.facts = None  # the parsed body is large; it is parsed again for the choice of an engine
        prepared.cell.queued += 1
        self._place = place

    def _leave_queue(self, now: float) -> None:
        """Give up the place in the queue, if any: there is room, or the request has ended."""
        place, self._place = self._place, None
        admission, prepared = self._context.admission, self._prepared
        if place is not None and prepared is not None and admission is not None:
            admission.leave(place)
            self._outcome.waited_s = max(0.0, now - place.since)
            prepared.cell.queued -= 1
            prepared.cell.queue.observe(self._outcome.waited_s)

    def _go(self, prepared: PreparedRequest) -> None:
        """Choose an engine and begin the relay."""
        context, request = self._context, self._head
        engine = first_engine(context, prepared, request.session)
        self._relay = Relay(context, self, self._connection, prepared, request, engine, self._outcome)
        self._relay.start()

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
        assert not self.response_complete
        self.response_complete = True
        context, outcome, relay, prepared = self._context, self._outcome, self._relay, self._prepared
        context.exchanges.discard(self)
        if prepared is not None:
            prepared.cell.in_flight -= 1
        outcome.ended_at = context.monotonic()
        outcome.phase = self.phase  # before it leaves the queue
        self._leave_queue(outcome.ended_at)
        record_end(context, outcome, self._key, prepared, relay, self._span, is_charged=self._is_charged)
        if relay is not None:
            relay.drop()
        self._relay = None
        self._prepared = None
        self._body.drop()  # the connection still holds its last exchange, so release an incomplete body
        if is_reset:
            self._connection.reset()
        self._connection.finished()
