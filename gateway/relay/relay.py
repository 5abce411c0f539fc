"""A relayed request from the choice of an engine on, and its response on the way back.

| phase      | until                                                               | sent to the client so far |
|------------|---------------------------------------------------------------------|---------------------------|
| `connect`  | a connection is open                                                | nothing                   |
| `wait`     | a stream's first content, another body's first byte, an error's end | nothing, or keep-alives   |
| `response` | the end                                                             | the response so far       |

In `connect` and `wait` another engine may be tried, once, within the retry budget. `gateway.relay.attempts` has the
choice of this engine, and the engine against which the failure counts. The reasons:

1. The engine cannot be reached (`unconnected`).
2. A time-out before the first content (`overdue`).
3. The status is 401 or 403 (the operator's fault, never the client's), 500, 502, 503 or 504 (`head`).
4. The body begins with an error event that is the engine's fault (`_has_failed_first`).
5. The engine breaks off (`reset`).
6. The engine is ejected while the request waits (`engine_ejected`).

vLLM sends the head of a stream before it has prefilled anything, so most retries are possible only because the head is
held back. From `response` on there is no retry: see `gateway.wire.response`.

Unless `--no-pass-keep-alives` is set, keep-alives of a stream are sent in `wait`. This commits to status 200
(`is_committed`): a later failure without another engine becomes an error event.

A kept connection that the engine closes just when the request is sent is replaced by a new one. This counts neither
against the engine nor against the budget. A break later than `STALE_S` is a failure as in 5.

The relay owns the engine's side only. The exchange ends the request and records it.
"""

from typing import Final

from specpilot.gateway.engines.fleet import Engine
from specpilot.gateway.relay.attempts import REFUSED_CREDENTIALS, SERVER_ERROR, Attempts, is_failure
from specpilot.gateway.relay.context import RETRY_AFTER_S, GatewayContext
from specpilot.gateway.relay.owner import Connection, Request
from specpilot.gateway.relay.prepared_request import PreparedRequest
from specpilot.gateway.telemetry.outcome import Outcome
from specpilot.gateway.wire.deadlines import BEFORE_CONTENT, Overdue
from specpilot.gateway.wire.errors import (
    BadEngineResponseError,
    EngineTimeoutError,
    EngineUnavailableError,
    GatewayError,
    StreamBrokenError,
    event_of,
)
from specpilot.gateway.wire.framing import ResponseHead
from specpilot.gateway.wire.heads import RequestHead, milliseconds
from specpilot.gateway.wire.response import Delivery, closing
from specpilot.gateway.wire.routes import STORED

STALE_S: Final = 1.0
"""Seconds after sending within which a closed connection counts as closed while idle. After that, the engine broke
off."""


class Relay:
    """One request from its choice of an engine on. Phases: see the module.

    `sent_at` is the time of the last sending, 0 before the first. `is_committed`: the client has a status and the
    beginning of a stream, but no content.
    """

    __slots__ = (
        "_attempts", "_connection", "_context", "_exchange", "_outcome", "_prepared", "_request", "_write",
        "delivery", "is_committed", "last_at", "phase", "sent_at",
    )  # fmt: skip

    def __init__(  # noqa: PLR0913, PLR0917 - the parts of a request
        self,
        context: GatewayContext,
        exchange: Request,
        connection: Connection,
        prepared: PreparedRequest,
        request: RequestHead,
        engine: Engine,
        outcome: Outcome,
    ) -> None:
        """`engine` is tried first. The engine's status and what failed are put into `outcome`."""
        self._context = context
        self._exchange = exchange
        self._connection = connection
        self._write = connection.write
        self._request = request
        self._prepared = prepared
        self._outcome = outcome
        self.last_at = outcome.received_at + outcome.waited_s
        self._attempts = Attempts(context, prepared, request.session, connection.client_host, engine)
        self.phase = "connect"
        self.sent_at = 0.0
        self.is_committed = False
        self.delivery: Delivery | None = None

    def describe(self) -> None:
        """Complete the outcome with the facts about the engine and its response."""
        outcome = self._outcome
        outcome.engines_tried = 2 if self._attempts.is_second else 1
        outcome.engine_id = self._attempts.current.engine.engine_id
        delivery = self.delivery
        if delivery is not None:
            outcome.usage = None if self._request.path in STORED else delivery.usage
            outcome.events = delivery.events
            outcome.is_event_stream = delivery.is_stream
            outcome.first_byte_at = None if delivery.has_failed_first else delivery.first_at  # an error is no content

    def start(self) -> None:
        """Try the first engine."""
        self._attempts.current.start(self, is_fresh=False)

    def lines(self) -> bytes:
        """Return the header lines about the engine."""
        lines = b""
        if self._context.shows_engine:
            lines = b"x-specpilot-engine: %s\r\n" % self._attempts.current.engine.engine_id.encode()
        if self._outcome.overhead_s is not None:
            lines += b"x-specpilot-overhead-ms: %s\r\n" % milliseconds(self._outcome.overhead_s)
        return lines

    def pause(self) -> None:
        """The client is slower than the engine: read no more of the response, so that the engine's side waits."""
        self._attempts.current.pause()

    def resume(self) -> None:
        """The client has read enough."""
        self.last_at = self._context.monotonic()
        self._attempts.current.resume()

    def overdue(self, expired: Overdue, now: float) -> None:
        """The time-out `expired` of the present phase is over."""
        if expired.name == "idle" and self._connection.is_stalled:  # the client is at fault, not the engine
            self._context.metrics.count_disconnect("stalled")
            self._outcome.error = "stalled"
            self._exchange.finish(is_reset=True)
            return
        self._context.metrics.count_upstream_error(f"{expired.name}_timeout")
        if expired.name in BEFORE_CONTENT:
            self.delivery = None
            if self._attempts.time_out(expired.name, self.sent_at, now, self):
                return
        self.end_with(EngineTimeoutError(str(expired)))

    def engine_ejected(self, engine: Engine) -> None:
        """`engine` does not answer: try another, if this request waits there for a first byte."""
        if self.phase == "wait" and self._attempts.current.engine is engine:
            delivery, self.delivery = self.delivery, None
            if not self._attempts.retry(self):
                self.delivery = delivery

    def end_with(self, error: GatewayError) -> None:
        """End with `error`, in the best form that is still possible.

        Before any content that is an answer, or an event if the client has a status already.
        """
        if self.delivery is not None and self.delivery.has_begun:
            self._reset_response(error)
            return
        self.delivery = None
        if not self.is_committed:
            self._exchange.local_reply(error)
            return
        self._outcome.error = error.code
        self._write(closing(event_of(error, self._request.path), is_modern=self._request.is_modern))
        self._exchange.finish()

    def drop(self) -> None:
        """Release the engine."""
        self._attempts.drop()

    # From the attempt: `gateway.relay.attempt.AttemptReader`

    def connecting(self) -> None:
        """There is no kept connection to the engine."""
        self.phase = "connect"

    def connected(self) -> None:
        """Send the request."""
        context, attempt, outcome = self._context, self._attempts.current, self._outcome
        self.phase = "wait"
        buffers = self._prepared.buffers(attempt.engine, self._request, names_response=context.names_responses)
        self.sent_at = self.last_at = context.monotonic()
        if outcome.overhead_s is None:
            outcome.overhead_s = max(0.0, self.sent_at - outcome.received_at - outcome.waited_s)
        attempt.send(buffers)

    def unconnected(self, reason: str) -> None:
        """The engine cannot be reached (1)."""
        if not self._attempts.retry(self):
            fault = "did not accept a connection in time" if reason == "connect_timeout" else "cannot be reached"
            self.end_with(EngineUnavailableError(f"the engine {fault}; try again", retry_after_s=RETRY_AFTER_S))

    def fail(self, error: Exception) -> None:
        """The gateway itself is at fault, and nothing has been sent to the client."""
        self._exchange.fail(error)

    # From the engine: `gateway.engines.upstream.Reader`

    def head(self, head: ResponseHead) -> None:
        """The engine's head arrived. It is held back. Some statuses are failures (3)."""
        self.last_at = now = self._context.monotonic()
        if is_failure(head.status):
            self._context.metrics.count_upstream_error(f"status_{head.status}")
            if self._attempts.fail_status(head.status, now, self):
                return
            if head.status in REFUSED_CREDENTIALS:
                message = "the engine refused the gateway's credentials; its operator has to set --engine-api-key"
                self.end_with(BadEngineResponseError(message, retry_after_s=RETRY_AFTER_S))
                return
        if not self.is_committed:
            self._outcome.status = head.status
        exchange = self._exchange
        self.delivery = Delivery(
            head,
            exchange.header_lines(),
            is_modern=self._request.is_modern,
            keep_alive=exchange.keep_alive,
            strips_usage=self._prepared.strips_usage,
            has_one_choice=self._prepared.has_one_choice,
            path=self._request.path,
            passes_keep_alives=self._context.passes_keep_alives,
            is_committed=self.is_committed,
        )

    def body(self, data: bytes) -> None:
        """Part of the body arrived."""
        delivery, engine = self.delivery, self._attempts.current.engine
        assert delivery is not None
        self.last_at = engine.heard_at = now = self._context.monotonic()
        has_begun = delivery.has_begun
        out = delivery.feed(data, now)
        if delivery.has_begun:
            engine.content_at = now
        if not has_begun:
            if delivery.has_begun and self._has_failed_first(delivery, now):
                return
            if delivery.has_begun or not delivery.is_stream:
                self.phase = "response"
        if delivery.gaps:
            self._prepared.cell.itl.observe(delivery.gap_s, delivery.gaps)
        if out:
            if not delivery.has_begun:
                self.is_committed = True
            elif self._prepared.body:  # there will be no retry, and a stream may take long
                self._prepared.release_body()
                self._exchange.body_released()
            self._write(out)

    def _has_failed_first(self, delivery: Delivery, now: float) -> bool:
        """Examine the beginning of a body; return whether the engine failed and another one is tried (4)."""
        if not delivery.has_failed_first:
            if self._outcome.status < SERVER_ERROR and delivery.has_content:
                self._attempts.answer(now)
            return False
        self.delivery = None
        if self._attempts.fail(now, self):
            self._context.metrics.count_upstream_error("error_event")
            return True
        self.delivery = delivery  # no other engine: the engine's own error is passed on
        return False

    def complete(self) -> None:
        """The response is whole."""
        delivery = self.delivery
        assert delivery is not None
        if not delivery.is_whole:
            self.reset("closed", is_stale=False)
            return
        self._attempts.current.detach()
        self.phase = "response"
        if delivery.has_error:
            self._context.metrics.count_upstream_error("error_event")
            self._outcome.error = "error_event"
        now = self._context.monotonic()
        self._attempts.complete(delivery, now)
        out = delivery.complete(now)
        if out:
            self._write(out)
        self._exchange.finish()

    def reset(self, reason: str, *, is_stale: bool) -> None:
        """The response will not be completed (5)."""
        self._attempts.current.detach()
        now = self._context.monotonic()
        if is_stale and now - self.sent_at <= STALE_S:
            self._attempts.repeat(self)
            return
        self._context.metrics.count_upstream_error(reason.partition(":")[0])
        if self.delivery is not None and self.delivery.has_begun:
            if self.delivery.has_ended:
                self._attempts.complete(self.delivery, now)
            else:
                self._attempts.fail_stream(now)
            self._reset_response(StreamBrokenError(f"the engine broke the response off ({reason})"))
            return
        self.delivery = None
        if not self._attempts.fail(now, self):
            message = f"the engine gave no whole answer ({reason}); try again"
            self.end_with(BadEngineResponseError(message, retry_after_s=RETRY_AFTER_S))

    def _reset_response(self, error: GatewayError) -> None:
        """End a response that has begun, with an error event if one can be added and the stream lacks its end."""
        delivery = self.delivery
        assert delivery is not None
        if not delivery.has_ended:
            self._outcome.error = error.code
        elif delivery.has_error:
            self._outcome.error = "error_event"
        tail = delivery.reset(event_of(error, self._request.path))
        if tail is not None:
            self._write(tail)
        self._exchange.finish(is_reset=tail is None)
