"""The client's side of a connection: uvicorn's HTTP protocol, from which relayed routes are taken out before ASGI.

One strict parser parses every request. A relayed route becomes an `Exchange`, which relays bytes. Every other route
becomes uvicorn's own cycle and reaches the FastAPI app.

- `gateway.relay.connection_state` has the states of a connection.
- `gateway.relay.client_reader` decides which bytes are parsed, and when: one request at a time.
- Back-pressure: while the client does not read the written bytes (`write_paused`), the engine's response is not read,
  and the next request is not parsed. So a client that sends and never reads occupies one response only.
- With `--public-paths`, for a port that faces a platform which expects a few paths, other machines get 404 for every
  other path. Callers on this machine may request all: health checks, metrics, operators. Behind a proxy on the same
  machine every caller is on this machine, so the proxy must limit the paths.
- A message that can be read in two ways (both length headers, two lengths, a sign in a length, a folded header, a
  coding besides chunked, ...) gets a 400, unless it has its answer by then, and the connection ends, on every route.
- Only public attributes and methods of uvicorn's protocol are used. They are the same in every version that the
  distribution allows, which a test checks.
"""

import asyncio
import ipaddress
import logging
from collections.abc import Callable
from typing import Any, Final, cast

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.server import ServerState

from specpilot.gateway.relay import connection_state
from specpilot.gateway.relay.client_reader import ClientReader
from specpilot.gateway.relay.connection_state import ANSWERING, CLOSING, HEAD, IDLE, STOP, after
from specpilot.gateway.relay.context import RETRY_AFTER_S, GatewayContext
from specpilot.gateway.relay.exchange import Exchange
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

_ELSEWHERE: Final = b"/not-served-to-other-machines"
_USUAL_LINE_END: Final = b" HTTP/1.1\r\n"
_log = logging.getLogger(__name__)


class ClientConnection(ClientReader):
    """One client connection.

    `_idle_since` is the time at which the last answer ended, or at which bytes of no request came after it (monotonic
    seconds); `None` while a request is read or answered. `_exchange` is the latest request, `None` if it is the app's.
    """

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
        self._exchange: Exchange | None = None
        self._public_paths: frozenset[bytes] = frozenset()  # empty: all
        self._idle_since: float | None = context.monotonic()
        self._stuck_since: float | None = None
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

    # Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        super().connection_made(cast("asyncio.Transport", transport))
        self.write = self.transport.write
        self.client_host = self.client[0] if self.client else None
        if self._context.public_paths and self.client_host is not None:  # without one it uses a Unix socket
            is_here = ipaddress.ip_address(self.client_host.partition("%")[0]).is_loopback
            self._public_paths = frozenset() if is_here else self._context.public_paths
        if len(self._context.connections) >= self._context.bounds.max_connections:
            self._context.metrics.count_refusal("connections")
            message = "too many connections (--max-connections); try again"
            self._refuse_rest(ConnectionsFullError(message, retry_after_s=RETRY_AFTER_S))
        self._context.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has disconnected: end its request. Cancellation reaches the engine before this returns."""
        self._context.connections.discard(self)
        self._state = CLOSING
        self._unread = b""
        if self._exchange is not None:
            self._exchange.client_left()
        super().connection_lost(exc)
        # They refer back to this object. Without them all are freed now, not by the collector.
        self.cycle = cast("Any", None)
        self._exchange = None

    def parse(self, data: bytes) -> None:
        """Parse `data`. The parser calls `on_url` and the other callbacks."""
        if self._state == IDLE:
            end = data.find(b"\n") + 1
            self._is_usual_line = data[max(0, end - len(_USUAL_LINE_END)) : end] == _USUAL_LINE_END
        self._head_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as stop:  # the parser stopped after this head, at the offset in `stop`
            head = self._without_upgrade()
            if self._state != CLOSING:
                self.parse(head + data[stop.args[0] :])
        except httptools.HttpParserCallbackError as error:  # uvicorn parses the targets that are not relayed
            if isinstance(error.__context__, (httptools.HttpParserError, UnicodeError)):
                self._refuse_rest(BadHeadError("the request target is not a path"))
            else:
                _log.exception("a request could not be read")
                self._refuse_rest(InternalError("the gateway failed; its log says why"))
        except httptools.HttpParserError as error:
            self._refuse_rest(BadHeadError(f"the request is not HTTP/1.1: {error}"))
        else:
            if self._idle_since is not None:  # blank lines, part of a head, the rest of a rejected request
                self._idle_since = self._context.monotonic()
            if self._head_bytes > HEAD_BYTES:
                self._refuse_rest(head_too_large())

    def pause_writing(self) -> None:
        """The client reads more slowly than the gateway writes."""
        super().pause_writing()
        if self._exchange is not None:
            self._exchange.pause()

    def resume_writing(self) -> None:
        """The client has read enough: continue its response, or parse its next request."""
        super().resume_writing()
        if self._exchange is not None:
            self._exchange.resume()
        self.read_on()

    # Parser

    def on_message_begin(self) -> None:
        """A request begins. uvicorn's own preparation is left out, because only requests for the app need it."""
        self._target = b""
        self._fields = []
        self._state = after(self._state, connection_state.BEGIN)
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
        self._state = after(self._state, connection_state.HEAD_END)
        self._head_bytes = 0
        if self._state == CLOSING:
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
            self._state = after(self._state, connection_state.UPGRADE_ASKED)
            return
        try:
            head = read_request_head(headers, is_modern=version == "1.1")
        except BadHeadError as error:
            self._refuse_rest(error)
            return
        self._idle_since = None
        self._body_left = head.length or 0
        if self._public_paths and self._target.partition(b"?")[0] not in self._public_paths:
            self._target = _ELSEWHERE + self._target
        if self._target[:1] != b"/":
            self._target = origin_form(self._target)
        path = ROUTES.get(self._target)
        if path is None:
            self._target = tidied(self._target)
            path = read_route(self._target, head)
        is_of_page = head.origin is not None and self._context.origins is not None
        if path is None or (is_of_page and parser.get_method() == b"OPTIONS"):  # the app answers a page's preflight
            self._leave_to_uvicorn(is_expecting=head.is_expecting)
        else:
            head.path = path
            self._start_exchange(head)

    def on_body(self, body: bytes) -> None:
        """Part of a body arrived."""
        self._head_bytes = 0
        if self._exchange is not None and self._state != CLOSING:
            self._exchange.feed(body)  # the app's routes take no body, so theirs is dropped

    def on_message_complete(self) -> None:
        """The request is whole."""
        self._head_bytes = 0
        self._state = after(self._state, connection_state.REQUEST_END)
        if self._state != ANSWERING:
            return
        exchange = self._exchange
        if exchange is not None and not exchange.response_complete:
            exchange.received()
        elif self.cycle.response_complete:  # it was answered before its end
            self._answered()
        else:
            super().on_message_complete()

    # Requests of both kinds

    def _start_exchange(self, head: RequestHead) -> None:
        parser = self.parser
        head.method = parser.get_method()
        exchange = self._exchange = Exchange(self._context, self, head)
        exchange.keep_alive = head.is_modern and parser.should_keep_alive()
        self.cycle = cast("RequestResponseCycle", exchange)
        if head.method == (b"GET" if head.path == RESPONSE else b"POST"):
            exchange.start()
        else:
            allowed = method_of(head.path)
            exchange.start(MethodNotAllowedError(f"{head.path} takes {allowed}", allowed))

    def _leave_to_uvicorn(self, *, is_expecting: bool) -> None:
        self._exchange = None
        super().on_message_begin()
        self.url = self._target
        self.headers.extend([(name, value.strip(b" \t")) for name, value in self._fields])  # httptools keeps blanks
        self.expect_100_continue = is_expecting
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """A response of the app has ended."""
        if not self.transport.is_closing():
            self._answered()

    def _answered(self) -> None:
        """An answer has ended: wait for the next request, or close."""
        self._state = after(self._state, connection_state.ANSWERED)
        if self._state == CLOSING:
            self.close_gently()
            return
        self._idle_since = self._context.monotonic()
        self.read_on()

    # For exchanges: `gateway.relay.owner.ClientSide`

    @property
    def is_stalled(self) -> bool:
        """Whether the client has not read all written bytes."""
        return bool(self.flow.write_paused)

    def reset(self) -> None:
        """Close the connection at once, so that the response does not look complete."""
        self.transport.abort()

    def finished(self) -> None:
        """The response of an exchange has ended."""
        exchange = self._exchange
        if exchange is None or self.transport.is_closing():  # the client has disconnected
            return
        if not exchange.keep_alive:
            self._state = CLOSING
            if exchange.is_received:
                self.transport.close()
                return
        self._answered()

    # Ends

    def sweep(self, now: float) -> None:
        """Close a connection that has been idle, or stuck in a head, for too long."""
        context, bounds = self._context, self._context.bounds
        is_in_grace = context.is_draining and not context.is_refusing  # close before requests here would be rejected
        keep_alive_s = min(DRAINING_IDLE_S, bounds.keep_alive_s) if is_in_grace else bounds.keep_alive_s
        idle_since = self._idle_since
        if self._is_stuck(now):
            self.transport.abort()
        elif self._state == HEAD:
            if now - self._head_since > bounds.request_timeout_s:
                message = f"the request did not arrive within {bounds.request_timeout_s:g} s (--request-timeout-s)"
                self._refuse_rest(RequestTimeoutError(message))
        elif idle_since is not None and now - idle_since > keep_alive_s:
            self.transport.close()

    def _is_stuck(self, now: float) -> bool:
        """Whether the client has not read the end of the last answer for too long, so that closing would never end."""
        is_relaying = self._exchange is not None and not self._exchange.response_complete
        if is_relaying or not (self.flow.write_paused or self.transport.is_closing()):
            self._stuck_since = None
            return False
        self._stuck_since = self._stuck_since or now
        return now - self._stuck_since > self._context.bounds.idle_timeout_s

    def _refuse_rest(self, error: GatewayError) -> None:
        """Read no more of this connection, and answer with `error` unless an answer is under way. The first counts."""
        if self._state == CLOSING:
            return
        began_at = self._head_since if self._state == HEAD else None
        self._state = after(self._state, STOP)
        exchange = self._exchange
        cycle: RequestResponseCycle | None = self.cycle
        if exchange is not None and not exchange.is_received and not exchange.response_complete:
            exchange.keep_alive = False
            exchange.local_reply(error)
        elif cycle is None or cycle.response_complete:
            request_id = self._context.new_request_id()
            self._context.recorder.record_unread(request_id, error, began_at, self.client_host)
            self.write(error_reply(error, b"x-request-id: %s\r\n" % request_id, keep_alive=False))
            self.close_gently()

    def _without_upgrade(self) -> bytes:
        """Return the request's head without its upgrade, for a new parser: the old one expects another protocol."""
        method = self.parser.get_method()
        head = without_upgrade(method, self._target, self.parser.get_http_version(), self._fields)
        self.parser = httptools.HttpRequestParser(self)
        if method == b"CONNECT":
            self._refuse_rest(MethodNotAllowedError("this is not a proxy; CONNECT is not served"))
        return head
