"""Which bytes of a client the parser gets, and when: one request at a time, and not too much in one pass of the loop.

The parser gets no byte after the end of a request before the answer has ended and the client has read it. Bytes of the
next request that come before (pipelining) are kept, up to `AHEAD_BYTES`. A client that sends more gets the answer under
way, and then its connection is closed; RFC 9112 (9.3.2) has it send the rest again.

Other connections are served in between. Each request, header and chunk takes at least one line, so the cost of a read
is bounded by its lines. A read of many lines is parsed `LINES_A_TURN` at a time, in one pass each. A large read of few
lines is part of a body and takes little time, but libuv would continue with up to 32 such reads. So after some of them
the client waits for one pass.

While a client waits for a pass, reading is paused. It is never paused for longer, nor while an answer is under way, so
a disconnect of the client is always detected.

If a connection with unread bytes is closed, it is reset, and the client could lose the answer that it has not read yet.
So it is half-closed first, and closed `LINGER_S` later.
"""

import asyncio
from abc import ABCMeta, abstractmethod
from typing import Final

from specpilot.gateway.relay.connection_state import BODY, CLOSING, HEAD, IDLE, STOP, after

AHEAD_BYTES: Final = 65_536
"""Bytes that are kept of requests that come before the answer to the one before them. They count as no body does."""

LINGER_S: Final = 5.0
"""Seconds in which a client must read the last answer before its connection is closed."""

PIECE_BYTES: Final = 2048
"""Bytes up to which a read is parsed at once: 80 requests at most, some 3 ms when nothing is compiled."""

LINES_A_TURN: Final = 128
"""Lines of a longer read that are parsed in one pass of the loop.

64 requests without headers, or 64 chunks of one byte, take some 3 ms. It is also the most headers of one request.
"""

LARGE_READ_BYTES: Final = 65_536
"""Bytes from which a read counts as large. uvloop reads up to 256,000 bytes at once, 32 times in a row."""

GIVE_WAY_BYTES: Final = 500_000
"""Bytes of large reads after which a client pauses for one pass of the loop: two reads of up to 1.5 ms each."""

_BLANK_LINE: Final = b"\r\n\r\n"


def end_of_turn(data: bytes) -> int:
    """Return the offset after the first `LINES_A_TURN` lines of `data`; its length if it has fewer.

    Only carriage returns are counted. A JSON body has few or none, and searching one byte takes a hundredth of
    searching pairs: 2 of 246 us for 256 KB.
    """
    at = 0
    for _ in range(LINES_A_TURN):
        at = data.find(b"\r", at) + 1
        if not at:
            return len(data)
    return data.find(b"\n", at) + 1 or len(data)


class ClientReader(metaclass=ABCMeta):
    """The reading side of one client connection. `is_stalled`: the client has not read all written bytes.

    It is an `asyncio.Protocol` without that base class: with it, the class could not be compiled to a plain structure.

    `_unread` are bytes that were read and are not parsed yet. `_is_waiting`: reading is paused until the next pass of
    the loop. `_large_bytes` are those of large reads since the last wait for them. `_body_left` are the bytes of a body
    with a length that have not come yet. `_is_after_line`: within a head or chunks, and the last byte may belong to the
    end of a line.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._state: str = IDLE
        self._unread = b""
        self._is_waiting = False
        self._large_bytes = 0
        self._body_left = 0
        self._is_after_line = False
        self.is_stalled = False
        self.transport: asyncio.Transport  # from `connection_made` on

    @abstractmethod
    def parse(self, data: bytes) -> None:
        """Parse `data`, which goes up to the end of a request at most."""

    def data_received(self, data: bytes) -> None:
        """Parse bytes of the client, or keep them."""
        if self._state == CLOSING:
            return
        if self._state == IDLE and not (self._unread or self._is_waiting or self.is_stalled):
            data = self._read_request(data)
            if not data:
                return
        if self._unread:
            data = self._unread + data
            self._unread = b""
        if self._is_waiting:
            self._unread = data
            return
        if len(data) >= LARGE_READ_BYTES:
            self._large_bytes += len(data)
            if self._large_bytes >= GIVE_WAY_BYTES:
                self._large_bytes = 0
                self._wait()
        self._read(data)

    def _read_request(self, data: bytes) -> bytes:
        """Parse the usual read: a short head, and what there is of its body by length. Return what else was read."""
        size, end = len(data), data.find(_BLANK_LINE, 0, PIECE_BYTES) + len(_BLANK_LINE)
        if end < len(_BLANK_LINE) or size >= LARGE_READ_BYTES:
            return data
        self.parse(data[:end])
        rest = size - end
        if rest and rest <= self._body_left and self._state == BODY:
            self._body_left -= rest
            self.parse(data[end:])
            return b""
        self._is_after_line = self._state == BODY
        return b"" if self._state == CLOSING else data[end:]

    def read_on(self) -> None:
        """Parse the unread bytes, if any, in the next pass of the loop."""
        if self._unread:
            self._wait()

    def _wait(self) -> None:
        if not self._is_waiting and not self.transport.is_closing():
            self._is_waiting = True
            self.transport.pause_reading()
            self._loop.call_soon(self._end_wait)

    def _end_wait(self) -> None:
        self._is_waiting = False
        if self.transport.is_closing():
            return
        unread, self._unread = self._unread, b""
        self._read(unread)
        if not self._is_waiting and not self.transport.is_closing():
            self.transport.resume_reading()

    def _read(self, data: bytes) -> None:
        """Parse `data` up to the end of a turn, or of a request that waits for its answer, and keep the rest."""
        at, size = 0, len(data)
        limit = end_of_turn(data) if size > PIECE_BYTES and size > self._body_left else size
        while at < limit and self._can_parse():
            end = self._end_of_piece(data, at, limit)
            self.parse(data[at:end])
            self._is_after_line = self._state in (HEAD, BODY) and data[end - 1] in b"\r\n"
            at = end
        if at == size or self._state == CLOSING:
            return
        self._unread = data[at:]
        if self._can_parse():
            self._wait()
        elif size - at > AHEAD_BYTES:
            self._unread = b""
            is_answered = self._state == IDLE
            self._state = after(self._state, STOP)
            if is_answered:
                self.close_gently()

    def close_gently(self) -> None:
        """Half-close now, and close after `LINGER_S`."""
        self._state = CLOSING
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._loop.call_later(LINGER_S, self.transport.close)

    def _can_parse(self) -> bool:
        """Whether each request so far has its answer, and the client has read it."""
        state = self._state
        return state in (HEAD, BODY) or (state == IDLE and not self.is_stalled)

    def _end_of_piece(self, data: bytes, at: int, limit: int) -> int:
        """Return the end of the next bytes for the parser. If a request ends in them, it ends there."""
        if self._body_left:
            end = min(at + self._body_left, len(data))
            self._body_left -= end - at
            return end
        # A head and a chunked body end with a blank line. One that began in the bytes before ends with the next line.
        mark = b"\n" if self._is_after_line else _BLANK_LINE
        mark_at = data.find(mark, at, limit)
        return limit if mark_at < 0 else mark_at + len(mark)
