"""A request on its way to an engine and its response on the way back: the phases from `connect` on.

Phases: `connect`, `wait` (sent, nothing back that goes to the client), `response`. The engine's head is held back until
the first byte of body, of a stream until its first content, of an error until the body's end: until then nothing has
been said to the client and another engine may be tried, once, within the retry budget: when the engine cannot be
reached, breaks off, says nothing in time, answers 401, 403 (its operator's fault, never the client's), 500, 502, 503 or
504, begins its body with an error event (comments and the events that open a stream aside), or is ejected while the
request waits. What keeps a stream's connection alive goes to the client before that, unless `--no-pass-keep-alives`: it
commits to status 200 (`is_committed`), so that what fails from then on, and finds no other engine, is an error event.
vLLM sends the head of a stream before it has prefilled anything, so this is where most retries are
possible. A kept connection that the engine closed just as a request went out is replaced by a fresh one, without this
being counted against the engine or the budget; what breaks later than `STALE_S` is a failure like others.
After the first byte there is no retry: see `gateway.wire.response`.

The relay holds the engine's side only. What ends a request, and what it counts as, is its `RelayOwner`'s business.
"""

import secrets
from collections.abc import Sequence
from typing import Final

from specpilot.gateway.engines.fleet import Engine
from specpilot.gateway.relay.attempt import Attempt
from specpilot.gateway.relay.context import RETRY_AFTER_S, GatewayContext
from specpilot.gateway.relay.owner import RelayOwner, ResponseSink
from specpilot.gateway.relay.prepared_request import PreparedRequest, pick_engine
from specpilot.gateway.routing.outlier_detection import Source
from specpilot.gateway.telemetry.outcome import Outcome
from specpilot.gateway.wire.body import with_request_id
from specpilot.gateway.wire.deadlines import BEFORE_CONTENT, STREAM_CONTENT, Overdue
from specpilot.gateway.wire.errors import (
    BadEngineResponseError,
    EngineTimeoutError,
    EngineUnavailableError,
    GatewayError,
    StreamBrokenError,
    event_of,
)
from specpilot.gateway.wire.framing import Framer, ResponseHead
from specpilot.gateway.wire.heads import RequestHead, milliseconds
from specpilot.gateway.wire.response import Delivery, closing
from specpilot.gateway.wire.response_id import RANDOM_BITS, identified, new_response_id
from specpilot.gateway.wire.routes import STORED

SMALL_BODY_BYTES: Final = 65_536
"""Bytes up to which a body is copied behind its head: one write is cheaper than two."""

STALE_S: Final = 1.0
"""Seconds after sending within which a closed connection counts as idle before. Later, the engine broke off."""

RETRIED_STATUS: Final[tuple[int, ...]] = (401, 403, 500, 502, 503, 504)
_REFUSED_CREDENTIALS: Final[tuple[int, ...]] = (401, 403)

_SERVER_ERROR: Final = 500
_NOT_IMPLEMENTED: Final = 501
"""What vLLM answers where the model has no such API: the client asked for it, and no engine has failed."""


class Blamed:
    """An engine that failed the request, while another has yet to show whose fault it was."""

    __slots__ = ("engine", "model", "source")

    def __init__(self, engine: Engine, model: str, source: Source) -> None:
        self.engine = engine
        self.model = model
        self.source = source


class Relay:
    """One request from its choice of an engine on.

    `began_at` is when the gateway could begin with it (monotonic seconds): once it was whole and had a place. `sent_at`
    is 0 until it has gone out. `status` is the engine's, 0 before there is one; `error` says what went wrong after it.
    `is_committed`: the client has a status and the beginning of a stream, but no content.
    """

    __slots__ = (
        "_began_at",
        "_blamed",
        "_context",
        "_method",
        "_owner",
        "_path",
        "_prepared",
        "_request",
        "_request_id",
        "_sink",
        "_write",
        "attempt",
        "delivery",
        "engines",
        "error",
        "is_committed",
        "last_at",
        "phase",
        "sent_at",
        "status",
    )  # fmt: skip

    def __init__(  # noqa: PLR0913, PLR0917 - a request is that much
        self,
        context: GatewayContext,
        owner: RelayOwner,
        sink: ResponseSink,
        prepared: PreparedRequest,
        method: bytes,
        path: str,
        request: RequestHead,
        request_id: bytes,
        began_at: float,
    ) -> None:
        self._context = context
        self._owner = owner
        self._sink = sink
        self._write = sink.write
        self._method = method
        self._path = path
        self._request = request
        self._request_id = request_id
        self._prepared = prepared
        self._began_at = self.last_at = began_at
        self._blamed: Blamed | None = None
        self.phase = "connect"
        self.sent_at = 0.0
        self.status = 0
        self.error: str | None = None
        self.is_committed = False
        self.engines: list[Engine] = []
        self.attempt: Attempt | None = None
        self.delivery: Delivery | None = None

    def describe(self, outcome: Outcome) -> None:
        """Put into `outcome` what is known of the engine and its response."""
        outcome.engines_tried = len(self.engines)
        if self.attempt is not None:
            outcome.engine_id = self.attempt.engine.engine_id
        if self.sent_at:
            outcome.overhead_s = max(0.0, self.sent_at - self._began_at)
        delivery = self.delivery
        if delivery is not None:
            outcome.usage = None if self._path in STORED else delivery.usage
            outcome.events = delivery.events
            outcome.is_event_stream = delivery.is_stream
            outcome.first_byte_at = delivery.first_at

    def begin(self, engine: Engine) -> None:
        """Go to `engine`."""
        self.engines.append(engine)
        self._try(engine)

    def lines(self) -> bytes:
        """Return the header lines that tell the client of the engine."""
        lines = b""
        if self._context.shows_engine and self.attempt is not None:
            lines = b"x-specpilot-engine: %s\r\n" % self.attempt.engine.engine_id.encode()
        if self.sent_at:
            lines += b"x-specpilot-overhead-ms: %s\r\n" % milliseconds(self.sent_at - self._began_at)
        return lines

    def pause(self) -> None:
        """The client is slower than the engine."""
        if self.attempt is not None:
            self.attempt.pause()

    def resume(self) -> None:
        """The client has caught up."""
        self.last_at = self._context.monotonic()
        if self.attempt is not None:
            self.attempt.resume()

    def overdue(self, found: Overdue, now: float) -> None:
        """A time-out of the present phase is over."""
        if found.name == "idle" and self._sink.is_stalled:
            self._context.metrics.count_disconnect("stalled")
            self.error = "stalled"
            self._owner.finish(is_reset=True)
            return
        self._context.metrics.count_upstream_error(f"{found.name}_timeout")
        if found.name in BEFORE_CONTENT and self.attempt is not None:
            engine = self.attempt.engine
            # Its server may keep connections alive while its model hangs.
            is_silent = (engine.content_at if found.name == STREAM_CONTENT else engine.heard_at) <= self.sent_at
            is_silent = is_silent and len(self.engines) == 1  # where two are silent it may be for the request
            self.delivery = None
            if is_silent:
                engine.outlier_detection.time_out(now, is_silent=True)
                is_retried = self._retry()
                self._context.engine_ejected(engine)  # those that may wait longer need not
            else:
                is_retried = self._fail(now)
            if is_retried:
                return
        self.end_with(EngineTimeoutError(str(found)))

    def engine_ejected(self, engine: Engine) -> None:
        """`engine` answers nothing: try another, if this request waits there for a first byte."""
        if self.phase == "wait" and self.attempt is not None and self.attempt.engine is engine:
            delivery, self.delivery = self.delivery, None
            if not self._retry():
                self.delivery = delivery

    def end_with(self, error: GatewayError) -> None:
        """End with `error`, as clearly as is still possible."""
        if self.delivery is not None and self.delivery.has_begun:
            self._reset_response(error)
        else:
            self.delivery = None
            self._reply(error)

    def drop(self) -> None:
        """Let go of the engine, for good, and of the attempt, so that no reference cycle is left."""
        attempt, self.attempt = self.attempt, None
        if attempt is not None:
            attempt.drop()
        if self._blamed is not None:
            self._judge_blamed(is_engines=False)

    def _fail(self, now: float) -> bool:
        """The engine failed before its answer; return whether another one is tried.

        Whose fault it was is for the other to show: a request that fails there too counts at neither.
        """
        assert self.attempt is not None
        engine = self.attempt.engine
        if len(self.engines) > 1:
            if self._blamed is None:  # the first could not be reached, or was left for its silence
                engine.outlier_detection.fail(now, is_connect=False, source=self._source())
            self._blamed = None
            return False
        self._blamed = Blamed(engine, self._prepared.model, self._source())
        if self._retry():
            return True
        self._judge_blamed(is_engines=False)
        return False

    def _judge_blamed(self, *, is_engines: bool) -> None:
        """Count the failure of the engine tried first; `is_engines`: the second one answered."""
        blamed, self._blamed = self._blamed, None
        if blamed is not None:
            is_engines = is_engines and blamed.model == self._prepared.model
            source = None if is_engines else blamed.source
            blamed.engine.outlier_detection.fail(self._context.monotonic(), is_connect=False, source=source)

    def _source(self) -> Source:
        return self._prepared.key_id or self._sink.client_host or "", self._prepared.mark()

    def _try(self, engine: Engine, *, is_fresh: bool = False) -> None:
        self.phase = "connect"
        self.attempt = Attempt(self._context, engine, self._prepared.work_tokens, self)
        self.attempt.begin(is_fresh=is_fresh)

    def _retry(self) -> bool:
        """Try another engine, if that is allowed and there is one; the failure has been counted already.

        Return whether the request is taken care of: also when the retry itself failed, which its client is told.
        """
        try:
            return self._try_another()
        except Exception as error:  # noqa: BLE001 - the client is owed an answer whatever happened
            self.failed(error)
            return True

    def _try_another(self) -> bool:
        now = self._context.monotonic()
        if self.attempt is None or len(self.engines) > 1:
            return False
        if not self._context.budget.allows(now):
            return False  # before the choice, which counts and remembers what it sends where
        engine = pick_engine(self._context, self._prepared, self._request.session, self.engines)
        if engine is None or engine in self.engines:
            return False  # or no other has what the request refers to
        self._context.budget.spend(now)
        self.engines.append(engine)
        self._try_again(engine)
        return True

    def _try_again(self, engine: Engine) -> None:
        """Begin at `engine` before the old place is given up: who waits for one must not take the place of both."""
        old = self.attempt
        assert old is not None
        self._context.metrics.retries += 1
        try:
            self._try(engine, is_fresh=engine is old.engine)
        finally:
            old.drop()

    # From the engine: `gateway.relay.attempt.AttemptReader`

    def connected(self) -> None:
        """Send the request."""
        prepared, attempt = self._prepared, self.attempt
        assert attempt is not None
        self.phase = "wait"
        body: Sequence[bytes | memoryview] = prepared.body
        if prepared.is_unnamed and self._context.marks_class:
            made_for = new_response_id(attempt.engine.engine_hash, prepared.key_id, secrets.randbits(RANDOM_BITS))
            body = with_request_id(body, made_for) if prepared.has_null_id else identified(body, made_for)
        only = body[0] if len(body) == 1 else None
        size = sum(map(len, body)) if only is None else len(only)
        head = b"%s%sx-request-id: %s\r\ncontent-length: %d\r\n\r\n" % (
            attempt.engine.head(self._method, (self._request.target or self._path).encode()),
            self._request.forwarded,
            self._request_id,
            size,
        )
        self.sent_at = self.last_at = self._context.monotonic()
        if size <= SMALL_BODY_BYTES and isinstance(only, bytes):
            attempt.send((head + only,))
        else:
            attempt.send((head, *body))

    def unconnected(self, reason: str) -> None:
        """The engine cannot be reached."""
        if not self._retry():
            said = "did not accept a connection in time" if reason == "connect_timeout" else "cannot be reached"
            self._reply(EngineUnavailableError(f"the engine {said}; try again", retry_after_s=RETRY_AFTER_S))

    def failed(self, error: Exception) -> None:
        """The gateway itself cannot go on, and nothing has been said to the client."""
        self._owner.fail(error)

    def head(self, head: ResponseHead, framer: Framer) -> None:
        """The engine's head arrived; nothing of it goes out yet."""
        assert self.attempt is not None
        self.last_at = now = self._context.monotonic()
        if (head.status >= _SERVER_ERROR and head.status != _NOT_IMPLEMENTED) or head.status in _REFUSED_CREDENTIALS:
            self._context.metrics.count_upstream_error(f"status_{head.status}")
            self.attempt.engine.pool.renew()
            if head.status in _REFUSED_CREDENTIALS:
                self.attempt.engine.outlier_detection.fail(now, is_connect=False)
                is_retried = self._retry()
            elif head.status in RETRIED_STATUS:
                is_retried = self._fail(now)
            else:
                is_retried = False
                self.attempt.engine.outlier_detection.fail(now, is_connect=False, source=self._source())
            if is_retried:
                return
            if head.status in _REFUSED_CREDENTIALS:
                said = "the engine refused the gateway's credentials; its operator has to set --engine-api-key"
                self._reply(BadEngineResponseError(said, retry_after_s=RETRY_AFTER_S))
                return
        if not self.is_committed:
            self.status = head.status
        owner = self._owner
        self.delivery = Delivery(
            head,
            framer,
            owner.own_lines(),
            is_modern=self._request.is_modern,
            keep_alive=owner.keep_alive,
            strips_usage=self._prepared.strips_usage,
            path=self._path,
            passes_keep_alives=self._context.passes_keep_alives,
            is_committed=self.is_committed,
        )
        owner.keep_alive = self.delivery.keep_alive

    def body(self, raw: bytes, payload: list[bytes]) -> None:
        """Part of the body arrived."""
        delivery = self.delivery
        assert delivery is not None
        self.last_at = now = self._context.monotonic()
        if self.attempt is not None:
            self.attempt.engine.heard_at = now
        has_begun = delivery.has_begun
        out = delivery.take(raw, payload, now)
        if delivery.has_begun and self.attempt is not None:
            self.attempt.engine.content_at = now
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
            elif self._prepared.body:  # there will be no retry, and a stream may last
                self._prepared.release_body()
                self._owner.body_released()
            self._write(out)

    def _has_failed_first(self, delivery: Delivery, now: float) -> bool:
        """Judge the beginning of a body: whether it was the engine's failure and is tried elsewhere."""
        assert self.attempt is not None
        if not delivery.has_failed_first:
            if self.status < _SERVER_ERROR and delivery.has_content:
                self.attempt.engine.outlier_detection.begin_answer(now)
                if self._blamed is not None:
                    self._judge_blamed(is_engines=True)
            return False
        self.delivery = None
        if self._fail(now):
            self._context.metrics.count_upstream_error("error_event")
            return True
        self.delivery = delivery  # passed on as it came: there is nothing better to say
        return False

    def complete(self) -> None:
        """The response is whole."""
        delivery, attempt = self.delivery, self.attempt
        assert delivery is not None
        assert attempt is not None
        if not delivery.is_whole:
            self.reset("closed", is_stale=False)
            return
        attempt.detach()
        self.phase = "response"
        if delivery.has_error:
            self._context.metrics.count_upstream_error("error_event")
            self.error = "error_event"
        now, outlier_detection = self._context.monotonic(), attempt.engine.outlier_detection
        if not delivery.has_failed:
            if delivery.has_content:
                outlier_detection.complete_stream()
                if delivery.is_stream:
                    outlier_detection.begin_answer(now)  # what opened it may have been too long to wait for more
        elif not delivery.has_failed_first:
            outlier_detection.fail_stream(now, self._source())
        out = delivery.complete(now)
        if out:
            self._write(out)
        self._owner.finish()

    def reset(self, reason: str, *, is_stale: bool) -> None:
        """The response will never be whole."""
        attempt = self.attempt
        assert attempt is not None
        attempt.detach()
        now = self._context.monotonic()
        if is_stale and now - self.sent_at <= STALE_S:
            self._try_again(attempt.engine)
            return
        self._context.metrics.count_upstream_error(reason.partition(":")[0])
        if self.delivery is not None and self.delivery.has_begun:
            attempt.engine.outlier_detection.fail_stream(now, self._source())
            self._reset_response(StreamBrokenError(f"the engine broke the response off ({reason})"))
            return
        self.delivery = None
        if not self._fail(now):
            said = f"the engine gave no whole answer ({reason}); try again"
            self._reply(BadEngineResponseError(said, retry_after_s=RETRY_AFTER_S))

    def _reply(self, error: GatewayError) -> None:
        """Answer with `error`, nothing of an answer having gone out: as an event where the client has a status."""
        if not self.is_committed:
            self._owner.local_reply(error)
            return
        self.error = error.code
        self._write(closing(event_of(error, self._path), is_modern=self._request.is_modern))
        self._owner.finish()

    def _reset_response(self, error: GatewayError) -> None:
        """End a response that has begun, with what can still be said."""
        assert self.delivery is not None
        self.error = error.code
        tail = self.delivery.reset(event_of(error, self._path))
        if tail is not None:
            self._write(tail)
        self._owner.finish(is_reset=tail is None)
