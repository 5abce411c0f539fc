"""Requests one small document from an engine: its models or its health. Not for clients' requests."""

import asyncio

from specpilot.gateway.engines.fleet import Engine
from specpilot.gateway.engines.out_of_files import OutOfFilesError
from specpilot.gateway.wire.content_coding import plain_of
from specpilot.gateway.wire.framing import ResponseHead

_OK = 200


class UnreachableError(OSError):
    """Nothing listens at the engine's address."""


class _Answer:
    """Collects one answer: a `gateway.engines.upstream.Reader`."""

    def __init__(self, limit_bytes: int) -> None:
        self.whole: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._limit_bytes = limit_bytes
        self._status = 0
        self._coding = ""
        self._parts: list[bytes] = []
        self._size = 0

    def head(self, head: ResponseHead) -> None:
        """Keep the status and the coding, which some proxies add unasked."""
        self._status, self._coding = head.status, head.coding

    def body(self, data: bytes) -> None:
        """Keep part of the answer, up to the limit."""
        self._parts.append(data)
        self._size += len(data)
        if self._size > self._limit_bytes:
            self._parts.clear()
            self._fail("too long")

    def complete(self) -> None:
        """The answer is complete: return it if its status is 200."""
        if self._status != _OK:
            self._fail(f"status {self._status}")
        elif not self.whole.done():
            plain = plain_of(b"".join(self._parts), self._coding, self._limit_bytes)
            if plain is None:
                self._fail(f"its Content-Encoding, {self._coding[:64]!r}, cannot be decoded")
            else:
                self.whole.set_result(plain)

    def reset(self, reason: str, *, is_stale: bool) -> None:
        """There will be no answer."""
        del is_stale
        self._fail(reason)

    def _fail(self, reason: str) -> None:
        if not self.whole.done():
            self.whole.set_exception(OSError(reason))


async def fetch(engine: Engine, path: bytes, accept: bytes, limit_bytes: int, timeout_s: float) -> bytes:
    """Return the body of `engine`'s answer to `GET path`, on a connection of its own.

    Raises `UnreachableError` when the connection cannot be opened and `OutOfFilesError` when this process cannot try.
    Raises `OSError` (time-outs included) when there is no answer with status 200 of at most `limit_bytes`.
    """
    async with asyncio.timeout(timeout_s):
        try:
            connection = await engine.pool.connect()
        except OutOfFilesError:
            raise
        except OSError as error:
            raise UnreachableError(str(error)) from error
        answer = _Answer(limit_bytes)
        try:
            connection.send(answer, (engine.head(b"GET", path) + b"accept: " + accept + b"\r\n\r\n",))
            return await answer.whole
        finally:
            connection.release(answer)
