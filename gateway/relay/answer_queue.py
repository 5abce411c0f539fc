"""The answers on one client connection, in the order of its requests: the writing side of `connection_state`.

A client may send requests before it has its answers (pipelining). Requests for the FastAPI app and relayed ones wait in
the same queue of uvicorn, so that they are answered in one order. `client_connection` adds to it while it reads.

Back-pressure: while the client does not read the written bytes (`write_paused`), the engine's response is not read, and
the next request does not start (`HELD`). So a client that sends and never reads occupies one response only.

Closing: if a connection with unread bytes is closed, it is reset, and the client could lose the answer that it has not
read yet. So it is half-closed first, and closed `LINGER_S` later.
"""

from typing import Any, Final, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from specpilot.gateway.relay.connection_state import CLOSE, DONE, HELD, HOLD, IGNORED, START, STOP, ConnectionState
from specpilot.gateway.relay.context import GatewayContext
from specpilot.gateway.relay.exchange import Exchange

PIPELINED: Final = 16
"""Requests that may wait behind another on one connection. After them, the rest of the connection is ignored."""

PIPELINED_BODY_BYTES: Final = 1_048_576
"""Bytes of body of such a request, which is kept until the request before it is answered."""

LINGER_S: Final = 5.0
"""Seconds in which a client must read the last answer before its connection is closed."""


class AnswerQueue:
    """The answers of one connection. `active` is the relayed request that is being answered.

    `idle_since` is the time at which the last answer ended, or at which bytes of no request came after it (monotonic
    seconds); `None` while a request is read or answered.
    """

    __slots__ = (
        "_context", "_flow", "_last_reply", "_loop", "_pipeline", "_server_state", "_state", "_stuck_since", "_tasks",
        "_transport", "active", "idle_since",
    )  # fmt: skip

    def __init__(self, context: GatewayContext, connection: HttpToolsProtocol, state: ConnectionState) -> None:
        """`connection` is open. Only its parts are kept, because a reference cycle would be freed late."""
        self._context = context
        self._flow = connection.flow
        self._loop = connection.loop
        self._pipeline = connection.pipeline
        self._server_state = connection.server_state
        self._state = state
        self._tasks = connection.tasks
        self._transport = connection.transport
        self._last_reply: bytes | None = None  # a local reply that waits for the answers before it
        self._stuck_since: float | None = None
        self.active: Exchange | None = None
        self.idle_since: float | None = context.monotonic()

    def is_stuck(self, now: float) -> bool:
        """Whether the client has not read the end of the last answer for too long, so that `close` would never end."""
        if self.active is not None or not (self._flow.write_paused or self._transport.is_closing()):
            self._stuck_since = None
            return False
        self._stuck_since = self._stuck_since or now
        return now - self._stuck_since > self._context.bounds.idle_timeout_s

    def add(self, exchange: Exchange, *, is_next: bool) -> None:
        """Answer `exchange` after the requests before it. `is_next`: all of those have their answers."""
        if is_next and not self._flow.write_paused:
            self._start(exchange)
            return
        if is_next:
            self._state.write(HOLD)
        exchange.wait_in_turn(PIPELINED_BODY_BYTES)
        self._pipeline.appendleft((cast("RequestResponseCycle", exchange), cast("Any", None)))

    def add_last(self, reply: bytes, *, is_next: bool) -> None:
        """Send `reply` after the answers under way, and close. `is_next` as for `add`."""
        if is_next and not self._pipeline:
            self._transport.write(reply)
            self.close_gently()
        else:
            self._last_reply = reply

    def pause(self) -> None:
        """The client reads more slowly than the gateway writes."""
        if self.active is not None:
            self.active.pause()

    def resume(self) -> None:
        """The client has read enough: continue its response, or begin the next."""
        if self.active is not None:
            self.active.resume()
        elif self._state.writing == HELD:
            self._begin_next()

    def end_active(self) -> None:
        """The response of the active request has ended: begin the next, or close."""
        exchange, self.active = self.active, None
        if exchange is None or self._transport.is_closing():  # the client has disconnected
            return
        if exchange.keep_alive:
            self.end_answer()
            return
        self._drop_waiting()
        self._server_state.total_requests += 1
        self._state.read(STOP)
        self._state.write(CLOSE)
        if exchange.is_received:
            self._transport.close()
        else:
            self.close_gently()

    def end_answer(self) -> None:
        """A response of either kind has ended: begin the next."""
        self._server_state.total_requests += 1
        self._state.write(DONE)
        if self._transport.is_closing():
            return
        if self._pipeline:
            if self._flow.write_paused:
                self._state.write(HOLD)
            else:
                self._begin_next()
        elif self._last_reply is not None:
            self._transport.write(self._last_reply)
            self.close_gently()
        elif self._state.reading == IGNORED:
            self.close_gently()
        else:
            self.idle_since = self._context.monotonic()

    def close_gently(self) -> None:
        """Half-close now, and close after `LINGER_S`."""
        self._state.read(STOP)
        self._state.write(CLOSE)
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._loop.call_later(LINGER_S, self._transport.close)

    def client_left(self) -> None:
        """End the current request and drop the waiting ones. Cancellation reaches the engine before this returns."""
        active, self.active = self.active, None
        self._drop_waiting()
        if active is not None:
            active.client_left()

    def _start(self, exchange: Exchange) -> None:
        self._state.write(START)
        self.active = exchange
        exchange.start()  # it may end at once, with a local reply, and so begin the next one

    def _begin_next(self) -> None:
        if self._pipeline and not self._transport.is_closing():
            cycle, app = self._pipeline.pop()
            if isinstance(cycle, Exchange):
                self._start(cycle)
                return
            self._state.write(START)
            task = self._loop.create_task(cycle.run_asgi(app))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _drop_waiting(self) -> None:
        """Release the waiting requests, which will get no answer."""
        for waiting, _ in self._pipeline:
            cycle: object = waiting
            if isinstance(cycle, Exchange):
                cycle.drop()
        self._pipeline.clear()
