"""Connections to one engine: HTTP/1.1, kept alive, one request at a time each, pooled newest first.

`EngineConnection` turns the engine's bytes into calls on the `Reader` whose request it carries. It keeps nothing
after the response's end: bytes beyond it, or bytes that nobody asked for, close the connection. Only a connection
whose request and response are both whole goes back to the pool, and it is let go there before the engine's own
keep-alive would close it under a new request.
"""

import asyncio
import errno
import ssl
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final, Protocol, cast
from urllib.parse import urlsplit

from specpilot.gateway.engines.out_of_files import OutOfFilesError
from specpilot.gateway.wire.framing import Framer, FramingError, OpenFramer, ResponseHead, parse_head
from specpilot.gateway.wire.tuning import HEAD_BYTES

SWITCHING_PROTOCOLS: Final = 101
_OUT_OF_FILES: Final[tuple[int, ...]] = (errno.EMFILE, errno.ENFILE)


class Reader(Protocol):
    """Whoever asked. After `complete`, `reset` or `EngineConnection.release` it hears nothing more."""

    def head(self, head: ResponseHead, framer: Framer) -> None:
        """The final head arrived."""

    def body(self, raw: bytes, payload: list[bytes]) -> None:
        """Part of the body arrived: as it came, and without chunk framing."""

    def complete(self) -> None:
        """The response is whole."""

    def reset(self, reason: str, *, is_stale: bool) -> None:
        """The response will never be whole.

        `is_stale`: a kept connection was closed before a single byte of answer, as engines do with idle ones. Soon
        after the request went out that is the likely reason; later it is not.
        """


@lru_cache(maxsize=1)
def tls_context() -> ssl.SSLContext:
    """Return what checks engines' certificates by the system's authorities: loaded once, as it takes tens of ms."""
    return ssl.create_default_context()


class Address:
    """Where an engine is. `host_header` is what its `Host` must say; `prefix` comes before each path.

    `name` is the host that its certificate must be for, `None` without TLS.
    """

    __slots__ = ("host", "host_header", "name", "port", "prefix", "tls")

    def __init__(self, url: str, name: str | None = None, tls: Callable[[], ssl.SSLContext] = tls_context) -> None:
        """`url` is the engine's base URL, without a trailing `/v1`; `name` its host's name where `url` has none.

        `tls` returns what new connections to `https://` are made with; it must not block.
        Raises `ValueError` for a `url` that names no place.
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
        shown = f"[{name}]" if ":" in name else name
        self.host_header = f"{shown}:{self.port}".encode("idna" if not shown.isascii() else "ascii")
        self.prefix = parts.path.rstrip("/").encode()


class EngineConnection:
    """One connection. `reader` is whose response it carries now, `None` while idle.

    An `asyncio.Protocol` in all but name: with that as its base it could not be compiled to plain structures.
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
        """Send `request`, whole, and tell `reader` what comes back."""
        self.reader = reader
        self.transport.writelines(request)

    def release(self, reader: Reader) -> None:
        """Close at once if `reader` still waits for its response; the engine sees it and stops working.

        Once that response was whole the connection may be another's: then nothing happens.
        """
        if self.reader is reader:
            self.abort()

    def abort(self) -> None:
        """Close at once, whatever is under way."""
        self.reader = None
        self.transport.abort()

    def pause(self) -> None:
        """Read no more until `resume`: the client is slower than the engine."""
        if not self.transport.is_closing():
            self._is_paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if not self.transport.is_closing():
            self._is_paused = False
            self.transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands."""
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "writelines")
        self.transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone: complete a body that ends with it, reset any other."""
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
        """The engine is behind with reading; a request is held in memory anyway."""

    def resume_writing(self) -> None:
        """The engine has read on."""

    def eof_received(self) -> None:
        """The engine sends no more; `connection_lost` follows."""

    def data_received(self, data: bytes) -> None:
        """Hand on what the engine sent. Bytes that nobody asked for, and malformed ones, close the connection."""
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
                return  # not whole yet, or the reader wants no more of it
            data = rest
        if data:
            taken = framer.feed(data)
            if taken == len(data):
                reader.body(data, framer.payload)
            else:
                self._buffer = data[taken:]
                if taken:
                    reader.body(data[:taken], framer.payload)
        if self.reader is not reader:
            return
        if framer.is_done:
            self._finish(reader)

    def _receive_head(self, data: bytes, reader: Reader) -> bytes | None:
        """Return what follows the head; `None` while that is not whole."""
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
                raise FramingError("it switches protocols, which nobody asked for")
        self._buffer = b""
        self._head = head
        self._framer = head.framer()
        reader.head(head, self._framer)
        return buffer

    def _finish(self, reader: Reader) -> None:
        head = self._head
        self.reader = self._framer = self._head = None
        self._is_used = True
        if self._is_paused:
            self.resume()  # a client too slow for the end of this response is no reason to leave the next one unread
        unsent = self.transport.get_write_buffer_size()
        if head is None or not head.is_kept_alive or self._buffer or unsent:
            self.transport.abort()
        else:
            self._pool.keep(self)
        reader.complete()


class Pool:
    """The idle connections to one engine."""

    def __init__(self, address: Address, keep_alive_s: float) -> None:
        self._address = address
        self._keep_alive_s = keep_alive_s
        self._idle: list[EngineConnection] = []
        self._is_closed = False
        self._epoch = 0  # connections of an earlier one are not kept
        self._now = 0.0

    async def connect(self) -> EngineConnection:
        """Open a new connection. Raises `OSError` when that fails, `OutOfFilesError` when it could not be tried."""
        address = self._address
        connection = EngineConnection(self, self._epoch)
        try:
            await asyncio.get_running_loop().create_connection(
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
        return connection

    def take(self, now: float) -> EngineConnection | None:
        """Return an idle connection that should still stand, `None` when there is none."""
        self._now = now
        while self._idle:
            connection = self._idle.pop()
            if now - connection.idle_since < self._keep_alive_s and not connection.transport.is_closing():
                return connection
            connection.transport.abort()
        return None

    def keep(self, connection: EngineConnection) -> None:
        """Put a connection back."""
        if self._is_closed or connection.epoch != self._epoch:
            connection.transport.close()
            return
        connection.idle_since = self._now
        self._idle.append(connection)

    def renew(self) -> None:
        """The engine fails: keep no connection that there is now, as its address may lead to another one since."""
        self._epoch += 1
        while self._idle:
            self._idle.pop().transport.close()

    def forget(self, connection: EngineConnection) -> None:
        """A connection is gone."""
        if connection in self._idle:
            self._idle.remove(connection)

    def sweep(self, now: float) -> None:
        """Close what has been idle too long."""
        self._now = now
        while self._idle and now - self._idle[0].idle_since >= self._keep_alive_s:
            self._idle.pop(0).transport.close()

    def close(self) -> None:
        """Close what is idle, now and from now on. Requests under way are not touched."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().transport.close()
