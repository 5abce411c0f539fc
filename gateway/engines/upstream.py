"""Connections to one engine: HTTP/1.1, kept alive, one request at a time each. The pool reuses the newest first.

`EngineConnection` turns the engine's bytes into calls on the `Reader` of the current request. Its state is in these
fields:

| state                | `reader` | `_framer` | in the pool | bytes from the engine                                  |
|----------------------|----------|-----------|-------------|--------------------------------------------------------|
| idle                 | `None`   | `None`    | yes         | unrequested: close                                     |
| waiting for the head | set      | `None`    | no          | collected in `_buffer` until the head is whole         |
| reading the body     | set      | set       | no          | passed to the reader                                   |
| closed               | `None`   | any       | no          | none                                                   |

Transitions:

- `send`: idle to waiting. The final head: waiting to reading (interim heads are dropped).
- End of the body: reading to idle, if the connection may be reused, else to closed. A connection may be reused when the
  engine keeps it alive, no byte came after the response and the request has been written whole.
- `release`, `abort`, a malformed byte, or the end of the connection: to closed. A body that is delimited by the end of
  the connection is complete then; any other response is reset.

The pool closes an idle connection before the engine's own keep-alive would, because a request that is sent at that
moment would fail.
"""

import asyncio
import errno
import ssl
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final, Protocol, cast
from urllib.parse import urlsplit

from specpilot.gateway.engines import tcp_keep_alive
from specpilot.gateway.engines.out_of_files import OutOfFilesError
from specpilot.gateway.wire.framing import Framer, FramingError, OpenFramer, ResponseHead, parse_head

HEAD_BYTES: Final = 65_536
"""Bytes of a response's status line and headers. A longer head is a fault of the engine."""

SWITCHING_PROTOCOLS: Final = 101
_OUT_OF_FILES: Final[tuple[int, ...]] = (errno.EMFILE, errno.ENFILE)


class Reader(Protocol):
    """Receives one response. After `complete`, `reset` or `EngineConnection.release` there are no further calls."""

    def head(self, head: ResponseHead) -> None:
        """The final head arrived."""

    def body(self, data: bytes) -> None:
        """Part of the body arrived: its content, without chunk framing."""

    def complete(self) -> None:
        """The response is whole."""

    def reset(self, reason: str, *, is_stale: bool) -> None:
        """The response will not be completed.

        `is_stale`: a kept connection was closed before the first byte of the answer, as engines do with idle
        connections. Soon after the request was sent that is the likely reason; later it is not.
        """


@lru_cache(maxsize=1)
def tls_context() -> ssl.SSLContext:
    """Return the context that checks engines by the system's authorities. Loaded once, as that takes tens of ms."""
    return ssl.create_default_context()


class Address:
    """The address of an engine. `host_header` is the value of `Host`; `prefix` comes before each path.

    `name` is the host in the engine's certificate, `None` without TLS.
    """

    __slots__ = ("host", "host_header", "name", "port", "prefix", "tls")

    def __init__(self, url: str, name: str | None = None, tls: Callable[[], ssl.SSLContext] = tls_context) -> None:
        """`url` is the engine's base URL without `/v1`; `name` is its host's name if `url` has an address instead.

        `tls` returns the context of new connections to `https://`; it must not block. Raises `ValueError` for a
        malformed `url`.
        """
        parts = urlsplit(url)
        port = parts.port
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("it is not http://host:port")
        self.tls = tls if parts.scheme == "https" else None
        self.host = parts.hostname
        self.port = port or (443 if self.tls else 80)
        name = name or self.host
        self.name = name if self.tls else None
        shown = f"[{name.partition('%')[0]}]" if ":" in name else name  # a zone is of this machine alone (RFC 6874, 4)
        self.host_header = f"{shown}:{self.port}".encode("idna" if not shown.isascii() else "ascii")
        self.prefix = parts.path.rstrip("/").encode()


class EngineConnection:
    """One connection. `reader` receives the current response, `None` while idle. States: see the module.

    It is an `asyncio.Protocol` without that base class: with it, the class could not be compiled to a plain structure.
    """

    __slots__ = (
        "_buffer", "_framer", "_head", "_is_paused", "_is_used", "_pool", "epoch", "idle_since", "reader", "transport",
    )  # fmt: skip

    def __init__(self, pool: "Pool", epoch: int) -> None:
        self._pool = pool
        self.epoch = epoch
        self._buffer = b""
        self._framer: Framer | None = None
        self._head: ResponseHead | None = None
        self._is_paused = False
        self._is_used = False
        self.idle_since = 0.0
        self.reader: Reader | None = None
        self.transport: asyncio.Transport

    def send(self, reader: Reader, request: Iterable[bytes | memoryview]) -> None:
        """Send `request`, whole, and pass the response to `reader`."""
        self.reader = reader
        self.transport.writelines(request)

    def release(self, reader: Reader) -> None:
        """Close at once if `reader` still waits for its response. The engine notices and stops working.

        After the end of its response the connection may carry another request; then nothing happens.
        """
        if self.reader is reader:
            self.abort()

    def abort(self) -> None:
        """Close at once, whatever is under way."""
        self.reader = None
        self.transport.abort()

    def pause(self) -> None:
        """Stop reading until `resume`: the client is slower than the engine."""
        if not self.transport.is_closing():
            self._is_paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        """Continue reading."""
        if not self.transport.is_closing():
            self._is_paused = False
            self.transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open."""
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "writelines")
        self.transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed: complete a body that is delimited by that, reset any other response."""
        self._pool.forget(self)
        reader, self.reader = self.reader, None
        if reader is None:
            return
        if isinstance(self._framer, OpenFramer) and exc is None:
            reader.complete()
        else:
            is_stale = self._is_used and self._framer is None and not self._buffer
            reader.reset("closed" if exc is None else "reset", is_stale=is_stale)

    def pause_writing(self) -> None:
        """The engine reads slowly. Nothing is done, because the request is in memory anyway."""

    def resume_writing(self) -> None:
        """The engine reads again."""

    def eof_received(self) -> None:
        """The engine closed its sending half; `connection_lost` follows."""

    def data_received(self, data: bytes) -> None:
        """Process bytes of the engine. Unrequested and malformed bytes close the connection."""
        reader = self.reader
        if reader is None:
            self.transport.abort()
            return
        try:
            self._receive(data, reader)
        except FramingError as error:
            self.abort()
            reader.reset(f"malformed: {error}", is_stale=False)

    def _receive(self, data: bytes, reader: Reader) -> None:
        framer = self._framer
        if framer is None:
            rest = self._receive_head(data, reader)
            framer = self._framer
            if rest is None or framer is None or self.reader is not reader:
                return  # the head is not whole yet, or the reader released the connection
            data = rest
        if data:
            size = framer.feed(data)  # bytes of this response; the others make the connection unfit for reuse
            if size < len(data):
                self._buffer = data[size:]
            if framer.payload:
                reader.body(framer.payload)
        if self.reader is not reader:
            return
        if framer.is_done:
            self._finish(reader)

    def _receive_head(self, data: bytes, reader: Reader) -> bytes | None:
        """Return the bytes after the head; `None` while the head is not whole."""
        buffer = self._buffer + data if self._buffer else data
        while True:
            end = buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(buffer) > HEAD_BYTES:
                    raise FramingError("the head is too long")
                self._buffer = buffer
                return None
            if end > HEAD_BYTES:
                raise FramingError("the head is too long")
            head = parse_head(buffer[: end + 2])
            buffer = buffer[end + 4 :]
            if not 100 <= head.status < 200:  # noqa: PLR2004 - interim responses
                break
            if head.status == SWITCHING_PROTOCOLS:
                raise FramingError("it switches protocols without a request to do so")
        self._buffer = b""
        self._head = head
        self._framer = head.framer()
        reader.head(head)
        return buffer

    def _finish(self, reader: Reader) -> None:
        head = self._head
        self.reader = self._framer = self._head = None
        self._is_used = True
        if self._is_paused:
            self.resume()  # the slow client of this response must not block the next response
        unsent = self.transport.get_write_buffer_size()  # an engine may answer before it has read the whole request
        if head is None or not head.is_kept_alive or self._buffer or unsent:
            self.transport.abort()
        else:
            self._pool.put_back(self)
        reader.complete()


class Pool:
    """The idle connections to one engine."""

    def __init__(self, address: Address, keep_alive_s: float, tcp_keep_alive_s: int = 0) -> None:
        self._address = address
        self._tcp_keep_alive_s = tcp_keep_alive_s
        self._keep_alive_s = keep_alive_s
        self._idle: list[EngineConnection] = []
        self._is_closed = False
        self._epoch = 0  # connections of earlier epochs are not reused
        self._now = 0.0  # of the last `acquire` or `sweep`, so that `put_back` needs no clock

    async def connect(self) -> EngineConnection:
        """Open a new connection. Raises `OSError` when that fails, `OutOfFilesError` when this process cannot try."""
        address = self._address
        connection = EngineConnection(self, self._epoch)
        try:
            transport, _ = await asyncio.get_running_loop().create_connection(
                lambda: cast("asyncio.Protocol", connection),
                address.host,
                address.port,
                ssl=None if address.tls is None else address.tls(),
                server_hostname=address.name,
            )
        except UnicodeError as error:
            raise OSError(f"{address.host!r} is no host name: {error}") from error
        except OSError as error:
            if error.errno in _OUT_OF_FILES:
                raise OutOfFilesError(error.errno, error.strerror) from error
            raise
        if not transport.is_closing():
            tcp_keep_alive.probe(transport.get_extra_info("socket"), self._tcp_keep_alive_s)
        return connection

    def acquire(self, now: float) -> EngineConnection | None:
        """Return the newest idle connection that is young enough and open; `None` when there is none."""
        self._now = now
        while self._idle:
            connection = self._idle.pop()
            if now - connection.idle_since < self._keep_alive_s and not connection.transport.is_closing():
                return connection
            connection.transport.abort()
        return None

    def put_back(self, connection: EngineConnection) -> None:
        """Put a connection back, unless the pool is closed or the connection is of an earlier epoch."""
        if self._is_closed or connection.epoch != self._epoch:
            connection.transport.close()
            return
        connection.idle_since = self._now
        self._idle.append(connection)

    def renew(self) -> None:
        """Reuse none of the present connections: the engine failed, and its address may lead to another engine now."""
        self._epoch += 1
        while self._idle:
            self._idle.pop().transport.close()

    def forget(self, connection: EngineConnection) -> None:
        """Remove a closed connection."""
        if connection in self._idle:
            self._idle.remove(connection)

    def sweep(self, now: float) -> None:
        """Close the connections that have been idle for too long."""
        self._now = now
        while self._idle and now - self._idle[0].idle_since >= self._keep_alive_s:
            self._idle.pop(0).transport.close()

    def close(self) -> None:
        """Close the idle connections, and from now on each one that becomes idle. Requests under way are unaffected."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().transport.close()
