"""A relayed request from the choice of an engine on, and its response on the way back.

| phase      | until                                                               | sent to the client so far |
|------------|---------------------------------------------------------------------|---------------------------|
| `connect`  | a connection is open                                                | nothing                   |
| `wait`     | a stream's first content, another body's first byte, an error's end | nothing, or keep-alives   |
| `response` | the end                                                             | the response so far       |

In `connect` and `wait` another engine may be tried, once, within the retry budget (`_retry`). The reasons:

1. The engine cannot be reached (`unconnected`).
2. A time-out before the first content (`overdue`).
3. The status is 401 or 403 (the operator's fault, never the client's), 500, 502, 503 or 504 (`head`).
4. The body begins with an error event that is the engine's fault (`_has_failed_first`).
5. The engine breaks off (`reset`).
6. The engine is ejected while the request waits (`engine_ejected`).

vLLM sends the head of a stream before it has prefilled anything, so most retries are possible only because the head is
held back. From `response` on there is no retry: see `gateway.wire.response`.

Unless `--no-pass-keep-alives` is set, keep-alives of a stream are sent in `wait`. That commits to status 200
(`is_committed`): a later failure without another engine becomes an error event.

A kept connection that the engine closes just when the request is sent is replaced by a new one. That counts neither
against the engine nor against the budget. A break later than `STALE_S` is a failure as in 5.

The relay owns the engine's side only. Its `RelayOwner` ends the request and records it.
"""

import secrets
from collections.abc import Sequence
from typing import Final

from specpilot.gateway.wire.amendments import with_request_id

from specpilot.gateway.engines.fleet import Engine
from specpilot.gateway.relay.attempt import Attempt
from specpilot.gateway.relay.context import RETRY_AFTER_S, GatewayContext
from specpilot.gateway.relay.owner import RelayOwner, ResponseSink
from specpilot.gateway.relay.prepared_request import PreparedRequest, pick_engine
from specpilot.gateway.routing.outlier_detection import Source
from specpilot.gateway.telemetry.outcome import Outcome
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
"""vLLM's answer when the model lacks the API. The client asked for it, so the engine has not failed."""


class Blamed:
    """An engine that failed the request, until a second engine shows whether the request is at fault."""

    __slots__ = ("engine", "model", "source")

    def __init__(self, engine: Engine, model: str, source: Source) -> None:
        self.engine = engine
        self.model = model
        self.source = source


class Relay:
    """One request from its choice of an engine on. Phases: see the module.

    `began_at` is when the gateway could begin: the request was whole and had a place (monotonic seconds). `sent_at` is
    0 until the request is sent. `status` is the engine's, 0 before there is one; `error` describes a later failure.
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
        """Put the facts about the engine and its response into `outcome`."""
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
        """Try `engine` first."""
        self.engines.append(engine)
        self._try(engine)

    def lines(self) -> bytes:
        """Return the header lines about the engine."""
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

    def overdue(self, expired: Overdue, now: float) -> None:
        """The time-out `expired` of the present phase is over."""
        if expired.name == "idle" and self._sink.is_stalled:  # the client is at fault, not the engine
            self._context.metrics.count_disconnect("stalled")
            self.error = "stalled"
            self._owner.finish(is_reset=True)
            return
        self._context.metrics.count_upstream_error(f"{expired.name}_timeout")
        if expired.name in BEFORE_CONTENT and self.attempt is not None:
            engine = self.attempt.engine
            # For the content time-out only content counts: a server may send keep-alives while its model hangs.
            is_silent = (engine.content_at if expired.name == STREAM_CONTENT else engine.heard_at) <= self.sent_at
            is_silent = is_silent and len(self.engines) == 1  # two silent engines suggest that the request is at fault
            self.delivery = None
            if is_silent:
                engine.outlier_detection.time_out(now, is_silent=True)
                is_retried = self._retry()
                self._context.engine_ejected(engine)  # other requests there need not wait for their time-outs
            else:
                is_retried = self._fail(now)
            if is_retried:
                return
        self.end_with(EngineTimeoutError(str(expired)))

    def engine_ejected(self, engine: Engine) -> None:
        """`engine` does not answer: try another, if this request waits there for a first byte."""
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
        """Release the engine and the attempt, so that no reference cycle remains."""
        attempt, self.attempt = self.attempt, None
        if attempt is not None:
            attempt.drop()
        if self._blamed is not None:
            self._judge_blamed(is_engines=False)

    def _fail(self, now: float) -> bool:
        """The engine failed before its answer; return whether another one is tried.

        The other engine shows whether the request is at fault: a request that fails there too counts at neither.
        """
        assert self.attempt is not None
        engine = self.attempt.engine
        if len(self.engines) > 1:  # the second engine failed too
            if self._blamed is None:  # the first was unreachable or silent, so it does not show the request's fault
                engine.outlier_detection.fail(now, is_connect=False, source=self._source())
            self._blamed = None
            return False
        self._blamed = Blamed(engine, self._prepared.model, self._source())
        if self._retry():
            return True
        self._judge_blamed(is_engines=False)
        return False

    def _judge_blamed(self, *, is_engines: bool) -> None:
        """Count the failure of the first engine. `is_engines`: the second one answered."""
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
        """Try another engine, if that is allowed and there is one. The caller has counted the failure.

        Returns whether the request is taken care of, which includes a retry that failed and was answered with an error.
        """
        try:
            return self._try_another()
        except Exception as error:  # noqa: BLE001 - the client must get an answer in any case
            self.failed(error)
            return True

    def _try_another(self) -> bool:
        now = self._context.monotonic()
        if self.attempt is None or len(self.engines) > 1:
            return False
        if not self._context.budget.allows(now):
            return False  # checked before the choice, which counts itself and remembers the prompt
        engine = pick_engine(self._context, self._prepared, self._request.session, self.engines)
        if engine is None or engine in self.engines:
            return False  # there is no other engine, or no other has the stored response
        self._context.budget.spend(now)
        self.engines.append(engine)
        self._try_again(engine)
        return True

    def _try_again(self, engine: Engine) -> None:
        """Begin at `engine` before the old attempt is dropped: otherwise a waiting request could take both places."""
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
        """The engine cannot be reached (1)."""
        if not self._retry():
            fault = "did not accept a connection in time" if reason == "connect_timeout" else "cannot be reached"
            self._reply(EngineUnavailableError(f"the engine {fault}; try again", retry_after_s=RETRY_AFTER_S))

    def failed(self, error: Exception) -> None:
        """The gateway itself is at fault, and nothing has been sent to the client."""
        self._owner.fail(error)

    def head(self, head: ResponseHead, framer: Framer) -> None:
        """The engine's head arrived. It is held back. Some statuses are failures (3)."""
        assert self.attempt is not None
        self.last_at = now = self._context.monotonic()
        if (head.status >= _SERVER_ERROR and head.status != _NOT_IMPLEMENTED) or head.status in _REFUSED_CREDENTIALS:
            self._context.metrics.count_upstream_error(f"status_{head.status}")
            self.attempt.engine.pool.renew()  # the address may lead to another engine now
            if head.status in _REFUSED_CREDENTIALS:  # certainly not this client's fault: no source
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
                message = "the engine refused the gateway's credentials; its operator has to set --engine-api-key"
                self._reply(BadEngineResponseError(message, retry_after_s=RETRY_AFTER_S))
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
        out = delivery.feed(raw, payload, now)
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
            elif self._prepared.body:  # there will be no retry, and a stream may take long
                self._prepared.release_body()
                self._owner.body_released()
            self._write(out)

    def _has_failed_first(self, delivery: Delivery, now: float) -> bool:
        """Judge the beginning of a body; return whether it was the engine's failure and another engine is tried (4)."""
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
        self.delivery = delivery  # no other engine: the engine's own error is passed on
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
                    outlier_detection.begin_answer(now)  # its openings may have been too long to hold, see `_is_open`
        elif not delivery.has_failed_first:
            outlier_detection.fail_stream(now, self._source())
        out = delivery.complete(now)
        if out:
            self._write(out)
        self._owner.finish()

    def reset(self, reason: str, *, is_stale: bool) -> None:
        """The response will not be completed (5)."""
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
            message = f"the engine gave no whole answer ({reason}); try again"
            self._reply(BadEngineResponseError(message, retry_after_s=RETRY_AFTER_S))

    def _reply(self, error: GatewayError) -> None:
        """Answer with `error` before any content: as an event if the client has a status already."""
        if not self.is_committed:
            self._owner.local_reply(error)
            return
        self.error = error.code
        self._write(closing(event_of(error, self._path), is_modern=self._request.is_modern))
        self._owner.finish()

    def _reset_response(self, error: GatewayError) -> None:
        """End a response that has begun, with an error event if one can be added."""
        assert self.delivery is not None
        self.error = error.code
        tail = self.delivery.reset(event_of(error, self._path))
        if tail is not None:
            self._write(tail)
        self._owner.finish(is_reset=tail is None)
