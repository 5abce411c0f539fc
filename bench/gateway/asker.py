"""A client that sends requests on one keep-alive connection and times the parts of each answer."""

import asyncio
import time
from typing import cast

import httptools

ANSWERED_WITHIN_S = 120.0
"""Longest wait for a whole answer, in seconds; longer than every reply of a measurement."""


class Asker(asyncio.Protocol):
    """One keep-alive connection that sends requests and times the answers' parts."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport: the connection is open."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own is one in all but name
        self.is_closed = False
        self._answer: asyncio.Future[None] | None = None

    async def ask(self, request: bytes) -> tuple[float, list[float]]:
        """Send `request`; return the seconds to the first byte of the body, and between its parts."""
        self._parser = httptools.HttpResponseParser(self)
        self._answer = asyncio.get_running_loop().create_future()
        self._times: list[float] = []
        self._request, self._end = request[:4096], b""
        began = time.perf_counter()
        self._transport.write(request)
        try:
            async with asyncio.timeout(ANSWERED_WITHIN_S):
                await self._answer
        except TimeoutError as error:
            self._fail()
            raise ConnectionError("no whole answer in time") from error
        return self._times[0] - began, [b - a for a, b in zip(self._times, self._times[1:], strict=False)]

    def data_received(self, data: bytes) -> None:
        """Note the time of a part of the answer's body; end the request once the answer is whole."""
        self._has_body = False
        self._parser.feed_data(data)
        if self._has_body:
            self._times.append(time.perf_counter())
        if self._is_whole and self._answer is not None and not self._answer.done():
            self._is_whole = False
            is_stream = b'"stream": true' in self._request
            if self._parser.get_status_code() == 200 and is_stream == (b"[DONE]" in self._end):  # noqa: PLR2004
                self._answer.set_result(None)
            else:
                self._fail()

    _is_whole = False
    _has_body = False

    def on_body(self, body: bytes) -> None:
        """Part of the answer's body arrived."""
        self._has_body = True
        self._end = (self._end + body)[-64:]

    def on_message_complete(self) -> None:
        """The answer is whole."""
        self._is_whole = True
        self._has_body = True

    def connection_lost(self, _error: Exception | None) -> None:
        """End an open request with an error."""
        self.is_closed = True
        self._fail()

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()

    def _fail(self) -> None:
        self._transport.close()
        self.is_closed = True
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError("the answer broke off"))
