"""The attempts of one request: the engines tried, and the engine against which a failure counts.

A request is tried at one engine, and after a failure before any content at another one, once, within the retry budget.
`gateway.relay.relay` has the failures. After one failure the cause is unknown: the engine may be faulty, or the request
may fail at every engine. So the result at the second engine decides:

| the first engine      | the second engine | counts                                        |
|-----------------------|-------------------|-----------------------------------------------|
| failed                | answers           | against the first, certainly its fault        |
| failed                | fails             | against neither: the request is at fault      |
| failed                | is not tried      | against the first, with the request as source |
| unreachable or silent | fails             | against the second, as above                  |

An unreachable or silent engine is counted at once. An answer for another model, to which a model route fell back, is no
evidence about the first engine. `gateway.routing.outlier_detection` defines the source.
"""

from dataclasses import dataclass
from typing import Final

from specpilot.gateway.engines.fleet import Engine
from specpilot.gateway.relay.attempt import Attempt, AttemptReader
from specpilot.gateway.relay.context import GatewayContext
from specpilot.gateway.relay.engine_choice import another_engine
from specpilot.gateway.relay.prepared_request import PreparedRequest
from specpilot.gateway.routing.outlier_detection import Source
from specpilot.gateway.wire.deadlines import STREAM_CONTENT
from specpilot.gateway.wire.response import Delivery

SERVER_ERROR: Final = 500
"""The smallest status that means a failure of the server."""

REFUSED_CREDENTIALS: Final[tuple[int, ...]] = (401, 403)
"""The operator's fault, never the client's: the gateway sends its own credentials."""

RETRIED_STATUS: Final[tuple[int, ...]] = (500, 502, 503, 504)
"""Statuses after which the result at the second engine decides what is at fault."""

_NOT_IMPLEMENTED: Final = 501
"""vLLM's answer when the model lacks the API. The client asked for it, so the engine has not failed."""


def is_failure(status: int) -> bool:
    """Whether `status` is a failure of the engine or its operator, and not the answer to the client's request."""
    return (status >= SERVER_ERROR and status != _NOT_IMPLEMENTED) or status in REFUSED_CREDENTIALS


@dataclass(slots=True)
class Blamed:
    """An engine that failed the request, until a second engine shows whether the request is at fault."""

    engine: Engine
    model: str
    source: Source


class Attempts:
    """The attempts of one request: at most two. `current` is the latest one; `engine` is tried first.

    `session` is the value of the session header, `client_host` the client's address. The methods that may begin an
    attempt take the request's relay. They return whether the request is handled: another engine is tried, or a fault of
    the gateway was answered with an error.
    """

    __slots__ = ("_blamed", "_client_host", "_context", "_prepared", "_session", "current", "is_second")

    def __init__(
        self,
        context: GatewayContext,
        prepared: PreparedRequest,
        session: str | None,
        client_host: str | None,
        engine: Engine,
    ) -> None:
        self._context = context
        self._prepared = prepared
        self._session = session
        self._client_host = client_host
        self._blamed: Blamed | None = None
        self.current = Attempt(context, engine, prepared.work_tokens)
        self.is_second = False

    # Beginning and end

    def repeat(self, relay: AttemptReader) -> None:
        """Try the same engine on a new connection: the kept one was stale."""
        self._replace(self.current.engine, relay)

    def retry(self, relay: AttemptReader) -> bool:
        """Try another engine, if that is allowed and there is one. The caller has counted the failure."""
        try:
            if self.is_second:
                return False
            engine = another_engine(self._context, self._prepared, self._session, (self.current.engine,))
            if engine is None:
                return False
            self.is_second = True
            self._replace(engine, relay)
        except Exception as error:  # noqa: BLE001 - the client must get an answer in any case
            relay.fail(error)
        return True

    def _replace(self, engine: Engine, relay: AttemptReader) -> None:
        """Begin at `engine` before the old attempt is dropped: otherwise a waiting request could take both places."""
        old, self.current = self.current, Attempt(self._context, engine, self._prepared.work_tokens)
        self._context.metrics.retries += 1
        try:
            self.current.start(relay, is_fresh=engine is old.engine)
        finally:
            old.drop()

    def drop(self) -> None:
        """End the attempt. No second engine has answered."""
        self.current.drop()
        if self._blamed is not None:
            self._judge(is_engines=False)

    # The result of an attempt, for its engine

    def answer(self, now: float) -> None:
        """A good answer has begun."""
        self.current.engine.outlier_detection.begin_answer(now)
        if self._blamed is not None:
            self._judge(is_engines=self._blamed.model == self._prepared.model)

    def complete(self, delivery: Delivery, now: float) -> None:
        """A response is complete, although it may contain an error."""
        outlier_detection = self.current.engine.outlier_detection
        if not delivery.has_failed:
            if delivery.has_content:
                outlier_detection.complete_stream()
                if delivery.is_stream:
                    outlier_detection.begin_answer(now)  # its openings may have been too long to hold, see `_is_open`
        elif not delivery.has_failed_first:
            outlier_detection.fail_stream(now, self._source())

    def fail_stream(self, now: float) -> None:
        """The engine broke off within its answer."""
        self.current.engine.outlier_detection.fail_stream(now, self._source())

    def fail(self, now: float, relay: AttemptReader) -> bool:
        """The engine failed before its answer."""
        attempt = self.current
        if attempt.has_failed:  # by its status, and no other engine was tried
            return False
        attempt.has_failed = True
        engine = attempt.engine
        if self.is_second:
            if self._blamed is None:  # the first was unreachable or silent, so it is no evidence against the request
                engine.outlier_detection.fail(now, is_connect=False, source=self._source())
            self._blamed = None
            return False
        self._blamed = Blamed(engine, self._prepared.model, self._source())
        if self.retry(relay):
            return True
        self._judge(is_engines=False)
        return False

    def fail_status(self, status: int, now: float, relay: AttemptReader) -> bool:
        """The engine answered with `status`, which `is_failure`."""
        engine = self.current.engine
        engine.pool.renew()  # the address may lead to another engine now
        if status in RETRIED_STATUS:
            return self.fail(now, relay)
        if status in REFUSED_CREDENTIALS:  # certainly not this client's fault: no source
            engine.outlier_detection.fail(now, is_connect=False)
            return self.retry(relay)
        self.current.has_failed = True
        engine.outlier_detection.fail(now, is_connect=False, source=self._source())
        return False

    def time_out(self, name: str, sent_at: float, now: float, relay: AttemptReader) -> bool:
        """There was no content in time. `name` is the time-out's; the request was sent at `sent_at`."""
        engine = self.current.engine
        # For the content time-out only content counts: a server may send keep-alives while its model hangs.
        is_silent = (engine.content_at if name == STREAM_CONTENT else engine.heard_at) <= sent_at
        # Two silent engines suggest that the request is at fault.
        if not is_silent or self.is_second or self.current.has_failed:
            return self.fail(now, relay)
        engine.outlier_detection.time_out(now)
        is_retried = self.retry(relay)
        self._context.engine_ejected(engine)  # other requests there need not wait for their time-outs
        return is_retried

    def _judge(self, *, is_engines: bool) -> None:
        """Count the failure of the first engine. `is_engines`: the second one answered, for the same model."""
        blamed, self._blamed = self._blamed, None
        if blamed is not None:
            source = None if is_engines else blamed.source
            blamed.engine.outlier_detection.fail(self._context.monotonic(), is_connect=False, source=source)

    def _source(self) -> Source:
        """Return the source of a failure: the API key, else the client's address, and a hash of the body."""
        return self._prepared.key_id or self._client_host or "", self._prepared.mark()
