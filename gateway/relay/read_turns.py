"""Bounds the bytes of a client that are parsed in one pass of the event loop, so that other connections are served too.

Each request, header and chunk takes at least one line, so the cost of a read is bounded by its lines. A read of many
lines is parsed `LINES_A_TURN` at a time, in one pass each. A large read of few lines is part of a body and takes little
time, but libuv would continue with up to 32 such reads. So after some of them the client waits for one pass.

Waiting means that reading is paused. The pause ends at the latest with the next pass that has nothing left to parse, so
a disconnect of the client is detected.
"""

import asyncio
from collections.abc import Callable
from typing import Final

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


def has_many_lines(data: bytes) -> bool:
    """Whether `data` has more than `LINES_A_TURN` lines.

    Carriage returns are counted first. A JSON body has few or none, and searching one byte takes a hundredth of
    counting pairs: 2 of 246 us for 256 KB.
    """
    at = 0
    for _ in range(LINES_A_TURN + 1):
        at = data.find(b"\r", at) + 1
        if not at:
            return False
    return data.count(b"\r\n") > LINES_A_TURN


def end_of_turn(data: bytes) -> int:
    """Return the offset after the first `LINES_A_TURN` lines of `data`; its length if it has fewer."""
    end = 0
    for _ in range(LINES_A_TURN):
        end = data.find(b"\r\n", end) + 2
        if end < 2:  # noqa: PLR2004 - there is no further one
            return len(data)
    return end


class ReadTurns:
    """The turns of one client. `unread` are the bytes that were read and are not parsed yet: only while it waits."""

    __slots__ = ("_is_waiting", "_large_bytes", "_loop", "_transport", "unread")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._is_waiting = False
        self._large_bytes = 0  # of large reads since the last wait for them
        self.unread = b""

    def is_over(self, size: int) -> bool:
        """Count a read of `size` bytes; return whether the client has to wait, after some large ones."""
        if size < LARGE_READ_BYTES:
            return False
        self._large_bytes += size
        if self._large_bytes < GIVE_WAY_BYTES:
            return False
        self._large_bytes = 0
        return True

    def wait(self, read_on: Callable[[], None]) -> None:
        """Pause reading, and call `read_on` in the next pass of the loop.

        It calls `start_turn`, parses, and calls `end_turn`.
        """
        if not self._is_waiting and not self._transport.is_closing():
            self._is_waiting = True
            self._transport.pause_reading()
            self._loop.call_soon(read_on)

    def start_turn(self) -> bytes:
        """Start a turn: return the unread bytes, which are to be parsed first; none when the connection closes."""
        self._is_waiting = False
        unread, self.unread = self.unread, b""
        return b"" if self._transport.is_closing() else unread

    def end_turn(self) -> None:
        """End a turn: read on, if nothing was left."""
        if not self.unread and not self._transport.is_closing():
            self._transport.resume_reading()
