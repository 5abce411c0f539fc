"""The client's side of a connection: the HTTP/1.1 server's protocol.

One strict parser parses every request. A relayed route becomes an `Exchange`, which relays bytes. Every other path is
one of the gateway's own pages, or an error.

- `gateway.relay.connection_state` has the states of a connection.
- `gateway.relay.client_reader` decides which bytes are parsed, and when: one request at a time.
- Back-pressure: while the client does not read the written bytes (`is_stalled`), the engine's response is not read,
  and the next request is not parsed. So a client that sends and never reads occupies one response only.
- A message that can be read in two ways (both length headers, two lengths, a sign in a length, a folded header, a
  coding besides chunked, ...) gets a 400, unless it has its answer by then, and the connection ends, on every route.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, cast

import httptools

from specpilot.gateway.relay import connection_state
from specpilot.gateway.relay.client_reader import ClientReader
from specpilot.gateway.relay.connection_state import ANSWERING, CLOSING, HEAD, IDLE, STOP, after
from specpilot.gateway.relay.context import RETRY_AFTER_S, GatewayContext
from specpilot.gateway.relay.exchange import Exchange
from specpilot.gateway.relay.owner import Pages
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
    seconds); `None` while a request is read or answered. `_exchange` is the latest request, `None` if it is for a page;
    `_is_page_open`: the page's answer has not been written.
    """

    def __init__(
        self, context: GatewayContext, pages: Pages, loop: asyncio.AbstractEventLoop, *, is_for_operators: bool = False
    ) -> None:
        """A connection `is_for_operators` has pages alone; it is not limited, and not counted as a client's."""
        super().__init__(loop)
        self._context = context
        self._pages = pages
        self._is_for_operators = is_for_operators
        self._peers = context.operators if is_for_operators else context.connections
        self._exchange: Exchange | None = None
        self._is_page_open = False
        self._public_paths: frozenset[bytes] = frozenset()  # empty: all
        self._idle_since: float | None = context.monotonic()
        self._stuck_since: float | None = None
        self._head_bytes = 0  # bytes since the last byte of body: a head, sizes of chunks, trailers
        self._head_since = 0.0
        self._target = b""
        self._fields: list[tuple[bytes, bytes]] = []
        # The next head begins with a whole line of HTTP/1.1. Checking here takes a quarter of the parser's own answer.
        self._is_usual_line = False
        self.client_host: str | None = None  # the address of the client, or of the proxy before it
        self._parser = httptools.HttpRequestParser(self)
        self.write: Callable[[bytes], None]  # the transport's own, from `connection_made` on

    # Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        context = self._context
        self.transport = cast("asyncio.Transport", transport)
        self.write = self.transport.write
        address = transport.get_extra_info("peername")
        self.client_host = str(address[0]) if isinstance(address, tuple) else None  # else it uses a Unix socket
        if not self._is_for_operators:
            self._public_paths = context.paths_for(self.client_host)
            if not context.has_room(0):
                message = "too many connections (--max-connections); try again"
                self._refuse_rest(ConnectionsFullError(message, retry_after_s=RETRY_AFTER_S))
        self._peers.add(self)

    def connection_lost(self, _exc: Exception | None) -> None:
        """The client has disconnected: end its request. Cancellation reaches the engine before this returns."""
        self._peers.discard(self)
        self._state = CLOSING
        self._unread = b""
        if self._exchange is not None:
            self._exchange.client_left()
        # They refer back to this object. Without them all are freed now, not by the collector.
        self._parser = cast("httptools.HttpRequestParser", None)
        self._exchange = None

    def eof_received(self) -> None:
        """The client closed its sending half, so it has disconnected; `connection_lost` follows."""

    def parse(self, data: bytes) -> None:
        """Parse `data`. The parser calls `on_url` and the other callbacks."""
        if self._state == IDLE:
            end = data.find(b"\n") + 1
            self._is_usual_line = data[max(0, end - len(_USUAL_LINE_END)) : end] == _USUAL_LINE_END
        self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as stop:  # the parser stopped after this head, at the offset in `stop`
            head = self._without_upgrade()
            if self._state != CLOSING:
                self.parse(head + data[stop.args[0] :])
        except httptools.HttpParserCallbackError:
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
        self.is_stalled = True
        if self._exchange is not None:
            self._exchange.pause()

    def resume_writing(self) -> None:
        """The client has read enough: continue its response, or parse its next request."""
        self.is_stalled = False
        if self._exchange is not None:
            self._exchange.resume()
        self.read_on()

    # Parser

    def on_message_begin(self) -> None:
        """A request begins."""
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
        """The head is whole: begin with the request."""
        self._state = after(self._state, connection_state.HEAD_END)
        self._head_bytes = 0
        if self._state == CLOSING:
            return
        parser = self._parser
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
        path = None if self._is_for_operators else ROUTES.get(self._target)
        if path is None:
            self._target = tidied(self._target)
            path = None if self._is_for_operators else read_route(self._target, head)
        head.method = parser.get_method()
        keep_alive = head.is_modern and parser.should_keep_alive()
        is_of_page = head.origin is not None and self._context.origins is not None
        if path is None or (is_of_page and head.method == b"OPTIONS"):  # a web page's preflight
            self._open_page(head, keep_alive=keep_alive)
        else:
            head.path = path
            self._start_exchange(head, keep_alive=keep_alive)

    def on_body(self, body: bytes) -> None:
        """Part of a body arrived."""
        self._head_bytes = 0
        if self._exchange is not None and self._state != CLOSING:
            self._exchange.feed(body)  # pages take no body, so theirs is dropped

    def on_message_complete(self) -> None:
        """The request is whole."""
        self._head_bytes = 0
        self._state = after(self._state, connection_state.REQUEST_END)
        if self._state != ANSWERING:
            return
        exchange = self._exchange
        if exchange is not None and not exchange.response_complete:
            exchange.received()
        elif not self._is_page_open:  # it was answered before its end
            self._answered()

    # Requests of both kinds

    def _start_exchange(self, head: RequestHead, *, keep_alive: bool) -> None:
        exchange = self._exchange = Exchange(self._context, self, head, keep_alive=keep_alive)
        if head.method == (b"GET" if head.path == RESPONSE else b"POST"):
            exchange.start()
        else:
            allowed = method_of(head.path)
            exchange.start(MethodNotAllowedError(f"{head.path} takes {allowed}", allowed))

    def _open_page(self, head: RequestHead, *, keep_alive: bool) -> None:
        self._exchange = None
        self._is_page_open = True
        keep_alive = keep_alive and not (head.is_expecting or self._context.is_leaving)  # its body may never come
        reply = self._pages.reply(head, self._target, self._fields, keep_alive=keep_alive)
        self._context.spawn(self._loop.create_task(self._show(reply, keep_alive=keep_alive)))

    async def _show(self, reply: Awaitable[bytes], *, keep_alive: bool) -> None:
        """Answer with a page once it is made."""
        data = await reply
        self._is_page_open = False
        if self.transport.is_closing():
            return
        self.write(data)
        if not keep_alive:
            is_received = self._state == ANSWERING
            self._state = CLOSING
            if is_received:
                self.transport.close()
                return
        self._answered()

    def _answered(self) -> None:
        """An answer has ended: wait for the next request, or close."""
        self._state = after(self._state, connection_state.ANSWERED)
        if self._state == CLOSING:
            self.close_gently()
            return
        self._idle_since = self._context.monotonic()
        self.read_on()

    # For exchanges: `gateway.relay.owner.Connection`

    def reset(self) -> None:
        """Close at once, so that the response does not look complete."""
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

    def shutdown(self) -> None:
        """The server ends: close the connection, after the answer under way if there is one."""
        if self._exchange is not None and not self._exchange.response_complete:
            self._exchange.keep_alive = False
        elif self._is_page_open:
            self._state = CLOSING
        else:
            self.transport.close()

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
        if is_relaying or not (self.is_stalled or self.transport.is_closing()):
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
        if exchange is not None and not exchange.response_complete:
            if not exchange.is_received:
                exchange.keep_alive = False
                exchange.local_reply(error)
        elif not self._is_page_open:
            request_id = self._context.new_request_id()
            self._context.recorder.record_unread(request_id, error, began_at, self.client_host)
            self.write(error_reply(error, b"x-request-id: %s\r\n" % request_id, keep_alive=False))
            self.close_gently()

    def _without_upgrade(self) -> bytes:
        """Return the request's head without its upgrade, for a new parser: the old one expects another protocol."""
        parser = self._parser
        method = parser.get_method()
        head = without_upgrade(method, self._target, parser.get_http_version(), self._fields)
        self._parser = httptools.HttpRequestParser(self)
        if method == b"CONNECT":
            self._refuse_rest(MethodNotAllowedError("this is not a proxy; CONNECT is not served"))
        return head
