"""The client's side of a connection: uvicorn's HTTP protocol, from which relayed routes are taken out before ASGI.

One strict parser parses every request. A relayed route becomes an `Exchange`, which relays bytes. Every other route
becomes uvicorn's own cycle and reaches the FastAPI app. Both kinds are answered in order.

`gateway.relay.connection_state` has the states of a connection and their transitions. This file has the reading side,
`gateway.relay.answer_queue` the writing side.

- Reading continues in every phase, so that a disconnect of the client is always detected. It pauses only for a pass of
  the event loop (`gateway.relay.read_turns`). Therefore the requests that a client may send ahead are bounded: after
  `PIPELINED` of them the rest of the connection is ignored, and it is closed after the answers.
- A message that can be read in two ways (both length headers, two lengths, a sign in a length, a folded header, a
  coding besides chunked, ...) gets a 400 and the connection ends, on every route.
- Only public attributes and methods of uvicorn's protocol are used. They are the same in every version that the
  distribution allows, which a test checks.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, cast

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from specpilot.gateway.relay import connection_state
from specpilot.gateway.relay.answer_queue import PIPELINED, AnswerQueue
from specpilot.gateway.relay.connection_state import HEAD, IDLE, IGNORED, STOP, ConnectionState
from specpilot.gateway.relay.context import RETRY_AFTER_S, GatewayContext
from specpilot.gateway.relay.exchange import Exchange
from specpilot.gateway.relay.read_turns import PIECE_BYTES, ReadTurns, end_of_turn, has_many_lines
from specpilot.gateway.wire.errors import (
    BadHeadError,
    ConnectionsFullError,
    GatewayError,
    InternalError,
    MethodNotAllowedError,
    RequestTimeoutError,
)
from specpilot.gateway.wire.heads import (
    HEAD_BYTES,
    HEADERS_MAX,
    RequestHead,
    error_reply,
    head_fault,
    head_too_large,
    read_request_head,
    without_upgrade,
)
from specpilot.gateway.wire.request_target import ROUTES, origin_form, read_route
from specpilot.gateway.wire.routes import RESPONSE, method_of, tidied

DRAINING_IDLE_S: Final = 1.0
"""Seconds after which an idle connection is closed during a drain."""

_USUAL_LINE_END: Final = b" HTTP/1.1\r\n"
_log = logging.getLogger(__name__)


class ClientConnection(HttpToolsProtocol):
    """One client connection."""

    def __init__(
        self,
        context: GatewayContext,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._context = context
        self._state = ConnectionState()
        self._head_bytes = 0  # bytes since the last byte of body: a head, sizes of chunks, trailers
        self._head_since = 0.0
        # Used instead of uvicorn's `url` and `headers`: compiled, a field of an uncompiled base costs a dict access.
        self._target = b""
        self._fields: list[tuple[bytes, bytes]] = []
        # The next head begins with a whole line of HTTP/1.1. Checking here takes a quarter of the parser's own answer.
        self._is_usual_line = False
        self.client_host: str | None = None
        """The address of the client, or of the proxy before it."""
        # From `connection_made` on:
        self.write: Callable[[bytes], None]  # the transport's own
        self._answers: AnswerQueue
        self._turns: ReadTurns

    # Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        super().connection_made(cast("asyncio.Transport", transport))
        self.write = self.transport.write
        self._answers = AnswerQueue(self._context, self, self._state)
        self._turns = ReadTurns(self.transport, self.loop)
        self.client_host = self.client[0] if self.client else None
        if len(self._context.connections) >= self._context.bounds.max_connections:
            self._context.metrics.count_refusal("connections")
            message = "too many connections (--max-connections); try again"
            self._refuse_rest(ConnectionsFullError(message, retry_after_s=RETRY_AFTER_S))
        self._context.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has disconnected: end the current request and drop the waiting ones."""
        self._context.connections.discard(self)
        self._state.read(STOP)
        self._turns.unread = b""
        self._answers.client_left()
        super().connection_lost(exc)
        # It refers back to this object. Without the cycle both are freed now, not by the collector.
        self.cycle = cast("Any", None)

    def data_received(self, data: bytes) -> None:
        """Parse bytes of the client. The parser calls `on_url` and the other callbacks."""
        if self._state.reading == IGNORED:
            return
        turns = self._turns
        if len(data) > PIECE_BYTES or turns.unread:
            if turns.unread:
                turns.unread += data
                return
            if has_many_lines(data):
                self._parse_lines(data)
                return
            if turns.is_over(len(data)):
                turns.wait(self._read_on)
        self._parse(data)

    def _read_on(self) -> None:
        """Parse the next lines of the unread bytes."""
        unread = self._turns.start_turn()
        if unread:
            self._parse_lines(unread)
        self._turns.end_turn()

    def _parse_lines(self, data: bytes) -> None:
        """Parse the first lines of `data` now, and the rest in later passes of the loop."""
        end = end_of_turn(data)
        self._parse(data[:end])
        if self._state.reading != IGNORED:
            self._turns.unread = data[end:]
            if self._turns.unread:
                self._turns.wait(self._read_on)

    def _parse(self, data: bytes) -> None:
        is_whole = False
        if self._state.reading == IDLE:
            end = data.find(b"\n") + 1
            self._is_usual_line = data[max(0, end - len(_USUAL_LINE_END)) : end] == _USUAL_LINE_END
        while not is_whole and self._state.reading != IGNORED:
            self._head_bytes += len(data)
            is_whole = True
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as stop:  # the parser stopped after this head, at the offset in `stop`
                data = self._without_upgrade() + data[stop.args[0] :]
                is_whole = False
            except httptools.HttpParserCallbackError as error:  # uvicorn parses the targets that are not relayed
                if isinstance(error.__context__, (httptools.HttpParserError, UnicodeError)):
                    self._refuse_rest(BadHeadError("the request target is not a path"))
                else:
                    _log.exception("a request could not be read")
                    self._refuse_rest(InternalError("the gateway failed; its log says why"))
            except httptools.HttpParserError as error:
                self._refuse_rest(BadHeadError(f"the request is not HTTP/1.1: {error}"))
            else:
                if self._answers.idle_since is not None:  # blank lines, part of a head, the rest of a rejected request
                    self._answers.idle_since = self._context.monotonic()
                if self._head_bytes > HEAD_BYTES:
                    self._refuse_rest(head_too_large())

    def pause_writing(self) -> None:
        """The client reads more slowly than the gateway writes."""
        super().pause_writing()
        self._answers.pause()

    def resume_writing(self) -> None:
        """The client has read enough: continue its response, or begin the next."""
        super().resume_writing()
        self._answers.resume()

    # Parser

    def on_message_begin(self) -> None:
        """A request begins. uvicorn's own preparation is left out, because only requests for the app need it."""
        self._target = b""
        self._fields = []
        self._state.read(connection_state.BEGIN)
        self._head_since = self._context.monotonic()

    def on_url(self, url: bytes) -> None:
        """Part of the request target arrived."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header arrived."""
        if len(self._fields) < HEADERS_MAX:  # one more than allowed, so that the excess is noticed
            self._fields.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is whole: take the request, or leave it to uvicorn."""
        self._state.read(connection_state.HEAD_END)
        self._head_bytes = 0
        if self._state.reading == IGNORED:
            return
        parser = self.parser
        version = "1.1" if self._is_usual_line else parser.get_http_version()
        self._is_usual_line = False
        headers = self._fields
        fault = head_fault(version, self._target, headers)
        if fault is not None:
            self._refuse_rest(fault)
            return
        if parser.should_upgrade():  # checked after the count of headers: the head is rebuilt from all of them
            self._state.read(connection_state.UPGRADE_ASKED)
            return
        if len(self.pipeline) >= PIPELINED:
            self._state.read(STOP)
            return
        try:
            head = read_request_head(headers, is_modern=version == "1.1")
        except BadHeadError as error:
            self._refuse_rest(error)
            return
        self._answers.idle_since = None
        if self._target[:1] != b"/":
            self._target = origin_form(self._target)
        path = ROUTES.get(self._target)
        if path is None:
            self._target = tidied(self._target)
            path = read_route(self._target, head)
        if path is None or (head.origin is not None and self._is_preflight()):
            self._leave_to_uvicorn(is_expecting=head.is_expecting)
        else:
            self._add_exchange(path, head)

    def _is_preflight(self) -> bool:
        """Whether this is a browser's preflight, which the app answers."""
        return self._context.origins is not None and self.parser.get_method() == b"OPTIONS"

    def on_body(self, body: bytes) -> None:
        """Part of a body arrived."""
        self._head_bytes = 0
        cycle: object = self.cycle
        if isinstance(cycle, Exchange) and self._state.reading != IGNORED:
            cycle.feed(body)  # the app's routes take no body, so theirs is dropped

    def on_message_complete(self) -> None:
        """The request is whole."""
        self._head_bytes = 0
        self._state.read(connection_state.REQUEST_END)
        if self._state.reading != IDLE:
            return
        cycle: object = self.cycle
        if not isinstance(cycle, Exchange):
            super().on_message_complete()
            return
        cycle.received()
        if cycle.response_complete and not self.pipeline:
            self._answers.idle_since = self._context.monotonic()

    # Requests of both kinds

    def _add_exchange(self, path: str, head: RequestHead) -> None:
        parser = self.parser
        method = parser.get_method()
        exchange = Exchange(self._context, self, method, path, head)
        exchange.keep_alive = head.is_modern and parser.should_keep_alive()
        if method != (b"GET" if path == RESPONSE else b"POST"):
            allowed = method_of(path)
            exchange.refusal = MethodNotAllowedError(f"{path} takes {allowed}", allowed)
        previous: RequestResponseCycle | None = self.cycle
        self.cycle = cast("RequestResponseCycle", exchange)
        self._answers.add(exchange, is_next=previous is None or previous.response_complete)

    def _leave_to_uvicorn(self, *, is_expecting: bool) -> None:
        previous: RequestResponseCycle | None = self.cycle
        super().on_message_begin()
        self.url = self._target
        self.headers.extend([(name, value.strip(b" \t")) for name, value in self._fields])  # httptools keeps blanks
        self.expect_100_continue = is_expecting
        if previous is None or previous.response_complete:
            self._state.write(connection_state.START)
        super().on_headers_complete()
        self.flow.resume_reading()  # uvicorn pauses while a request waits: a disconnect would not be detected

    def on_response_complete(self) -> None:
        """A response of the app has ended: begin the next."""
        self._answers.end_answer()

    # For exchanges: `gateway.relay.owner.ClientSide`

    @property
    def is_stalled(self) -> bool:
        """Whether the client has not read all written bytes."""
        return bool(self.flow.write_paused)

    def reset(self) -> None:
        """Close the connection at once, so that the response does not look complete."""
        self.transport.abort()

    def finished(self) -> None:
        """The response of an exchange has ended: begin the next, or close."""
        self._answers.end_active()

    # Ends

    def sweep(self, now: float) -> None:
        """Close a connection that has been idle, or stuck in a head, for too long."""
        context, bounds = self._context, self._context.bounds
        is_in_grace = context.is_draining and not context.is_refusing  # close before requests here would be rejected
        keep_alive_s = min(DRAINING_IDLE_S, bounds.keep_alive_s) if is_in_grace else bounds.keep_alive_s
        idle_since = self._answers.idle_since
        if self._answers.is_stuck(now):
            self.transport.abort()
        elif self._state.reading == HEAD:
            if now - self._head_since > bounds.request_timeout_s:
                message = f"the request did not arrive within {bounds.request_timeout_s:g} s (--request-timeout-s)"
                self._refuse_rest(RequestTimeoutError(message))
        elif idle_since is not None and now - idle_since > keep_alive_s:
            self.transport.close()

    def _refuse_rest(self, error: GatewayError) -> None:
        """Read no more of this connection, and send `error` after the answers under way. Only the first call counts."""
        if self._state.reading == IGNORED:
            return
        began_at = self._head_since if self._state.reading == HEAD else None
        self._state.read(STOP)
        latest: object = self.cycle
        if isinstance(latest, Exchange) and not latest.is_received and not latest.response_complete:
            latest.keep_alive = False
            latest.local_reply_in_turn(error)
            return
        request_id = self._context.new_request_id()
        self._context.recorder.record_unread(request_id, error, began_at, self.client_host)
        reply = error_reply(error, b"x-request-id: %s\r\n" % request_id, keep_alive=False)
        cycle: RequestResponseCycle | None = self.cycle
        self._answers.add_last(reply, is_next=cycle is None or cycle.response_complete)

    def _without_upgrade(self) -> bytes:
        """Return the request's head without its upgrade, for a new parser: the old one expects another protocol."""
        method = self.parser.get_method()
        head = without_upgrade(method, self._target, self.parser.get_http_version(), self._fields)
        self.parser = httptools.HttpRequestParser(self)
        if method == b"CONNECT":
            self._refuse_rest(MethodNotAllowedError("this is not a proxy; CONNECT is not served"))
        return head
