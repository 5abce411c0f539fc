"""What keeps a stream's connection alive and says nothing: comments, `ping` events and their like. Pure.

An engine that prefills sends them so that no proxy on the way takes the stream for dead, so they must not wait for the
first content. Events that open a stream (`message_start`, `response.created`) do wait: they name the response, and a
second engine would name another. So what keeps alive overtakes them, which no client minds: it carries no state.

A frame keeps alive when it dispatches nothing (no line of data), when its name says so, or when its data is empty or an
object of such a type. A line of comment goes on by itself, before the frame that it stands in is whole.

Lines end in LF, CRLF or CR. A CR at the end of what has come may be half of a CRLF, so it ends a line only where a CR
did so before.
"""

import re
from typing import Final

KEEP_ALIVE_NAMES: Final = rb"ping|keep-?alive|heartbeat"
_NAMED: Final = re.compile(rb"^event: ?(?:" + KEEP_ALIVE_NAMES + rb")$", re.MULTILINE)
_SAYS_NOTHING: Final = re.compile(
    rb'data:?\s*(?:$|\{\s*"type"\s*:\s*"(?:' + KEEP_ALIVE_NAMES + rb')"[^{\[\r\n]*\}\s*$)'
)
_BREAK: Final = re.compile(rb"\r?\n\r?\n")
_LINE: Final = re.compile(rb"(?::[^\n]*)?\r?\n")
_LONE_RETURN: Final = re.compile(rb"\r[^\n]")
_BREAK_OF_RETURNS: Final = re.compile(rb"(?>\r\n?|\n){2}")
_LINE_OF_RETURNS: Final = re.compile(rb"(?::[^\r\n]*)?(?:\r\n?|\n)")


def says_nothing(frame: bytes) -> bool:
    """Whether `frame`, which begins with its line of data, carries none, or nothing but that the engine lives."""
    return _SAYS_NOTHING.match(frame) is not None


def keeps_alive(frame: bytes) -> bool:
    """Whether the whole frame keeps a connection alive and nothing else."""
    frame = frame.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    at = 0 if frame.startswith(b"data") else frame.find(b"\ndata") + 1
    if at == 0 and not frame.startswith(b"data"):
        return True
    return _NAMED.search(frame, 0, at) is not None or says_nothing(frame[at:])


class KeepAlives:
    """Takes the frames that keep alive out of the beginning of a stream, up to its first content."""

    __slots__ = ("_break", "_held", "_line", "_rest", "size")

    def __init__(self) -> None:
        self._break = _BREAK
        self._line = _LINE
        self._held: list[bytes] = []
        self._rest = b""
        self.size = 0  # bytes held back

    def feed(self, data: bytes) -> bytes:
        """Take the next part of the stream; return what of it goes on at once."""
        text = self._rest + data
        if _LONE_RETURN.search(text) is not None:
            self._break, self._line = _BREAK_OF_RETURNS, _LINE_OF_RETURNS
        alive: list[bytes] = []
        at = 0
        while (found := self._break.search(text, at)) is not None:
            frame = text[at : found.end()]
            (alive if keeps_alive(frame) else self._held).append(frame)
            at = found.end()
        while (line := self._line.match(text, at)) is not None:
            alive.append(line[0])
            at = line.end()
        self._rest = text[at:]
        self.size = sum(map(len, self._held)) + len(self._rest)
        return b"".join(alive)

    def rest(self) -> bytes:
        """Return what was held back, in order, and hold it no longer."""
        held = b"".join((*self._held, self._rest))
        self._held.clear()
        self._rest = b""
        self.size = 0
        return held
