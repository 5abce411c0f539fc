"""A gateway without sockets: its own protocols, one on the client's side, one on the engine's, fed by hand.

Everything between the two sides is the product's. Only the transports and the timer are stand-ins: they keep what they
are given and answer at once.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from specpilot.gateway.app import create_context
from specpilot.gateway.engines.upstream import EngineConnection, Pool
from specpilot.gateway.pages import Pages
from specpilot.gateway.relay.client_connection import ClientConnection
from specpilot.gateway.settings import GatewaySettings
from specpilot.policy.clock import SystemClock

REPLY = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
MODEL = "tiny"


class _Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.is_cut = False
        self._is_closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._is_closing:
            self.written += data

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        for data in list_of_data:
            self.write(data)

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._is_closing = True

    def abort(self) -> None:
        self.is_cut = not self._is_closing
        self._is_closing = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._is_closing = True

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0


class _Task:
    def add_done_callback(self, callback: object) -> None:
        pass


class _Loop:
    """Runs at once what never waits, keeps what is to be called soon, and forgets timers."""

    _task = _Task()

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def call_later(self, delay_s: float, callback: object) -> None:
        pass

    def create_task(self, coroutine: Any, context: object = None) -> _Task:
        try:
            coroutine.send(None)
        except StopIteration:
            return self._task
        raise AssertionError("a page waits, which none does here")


async def _no_metrics() -> bytes:
    return b""


@dataclass
class Talk:
    """What was said: to the engine, one item a request, and to the client. `is_cut`: its connection was reset."""

    relayed: list[bytes] = field(default_factory=list)
    answered: bytes = b""
    is_cut: bool = False
    is_closed: bool = False


class _EnginePool(Pool):
    """Hands out connections whose other end is a list."""

    def __init__(self) -> None:
        self.waiting: list[EngineConnection] = []

    def acquire(self, now: float) -> EngineConnection:
        connection = EngineConnection(self, 0)
        connection.connection_made(_Transport())
        self.waiting.append(connection)
        return connection

    def put_back(self, connection: EngineConnection) -> None:
        pass

    def forget(self, connection: EngineConnection) -> None:
        pass

    def renew(self) -> None:
        pass


class MemoryGateway:
    """One gateway for many talks, each on a connection of its own."""

    def __init__(self) -> None:
        self.context = create_context(GatewaySettings(engine="http://127.0.0.1:1"), SystemClock(), None)  # type: ignore[arg-type]
        [engine] = self.context.fleet.engines.values()
        engine.cards = ({"id": MODEL},)
        self.context.fleet.index()
        self._pool = _EnginePool()
        engine.pool = self._pool
        self._pages = Pages(self.context, None, {}, _no_metrics)

    def talk(self, request: Sequence[bytes], reply: Sequence[bytes] = (REPLY,), *, ends: bool = False) -> Talk:
        """Feed `request` to the client's side; the engine answers each request with `reply`, then maybe closes."""
        talk = Talk()
        transport = _Transport()
        loop = _Loop()
        client = ClientConnection(self.context, self._pages, cast("Any", loop))
        client.connection_made(transport)
        for part in request:
            client.data_received(part)
            while self._pool.waiting or loop.soon:
                if self._pool.waiting:
                    connection = self._pool.waiting.pop(0)
                    talk.relayed.append(bytes(cast("Any", connection.transport).written))
                    self._answer(connection, reply, ends=ends)
                else:
                    loop.soon.pop(0)()
        talk.answered = bytes(transport.written)
        talk.is_cut, talk.is_closed = transport.is_cut, transport.is_closing()
        client.connection_lost(None)
        assert not self.context.exchanges
        assert not self.context.connections
        [engine] = self.context.fleet.engines.values()
        assert (engine.outstanding_requests, engine.outstanding_tokens) == (0, 0)
        return talk

    def _answer(self, connection: EngineConnection, reply: Sequence[bytes], *, ends: bool) -> None:
        for part in reply:
            if connection.transport.is_closing():
                break
            connection.data_received(part)
        if ends or connection.transport.is_closing():
            connection.connection_lost(None)
