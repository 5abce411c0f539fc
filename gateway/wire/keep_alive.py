"""Keep-alives of a stream: comments, `ping` events and the like. Pure.

An engine that prefills sends them so that no proxy closes the stream, so they must not wait for the first content.
Events that open a stream (`message_start`, `response.created`) do wait, because they name the response, and a second
engine would give another name. So keep-alives overtake them, which is harmless: a keep-alive has no state.

A frame is a keep-alive when it dispatches no event (it has no line of data), when its name is that of a keep-alive, or
when its data is empty or an object of such a type. A comment line is passed on by itself, before its frame is complete.

Lines end in LF, CRLF or CR. A CR at the end of a read may be half of a CRLF, so it ends a line only if an earlier CR of
the stream did so.
"""

import re
from typing import Final

KEEP_ALIVE_NAMES: Final = rb"ping|keep-?alive|heartbeat"
_NAMED: Final = re.compile(rb"^event: ?(?:" + KEEP_ALIVE_NAMES + rb")$", re.MULTILINE)
_SAYS_NOTHING: Final = re.compile(rb'\s*(?:$|\{\s*"type"\s*:\s*"(?:' + KEEP_ALIVE_NAMES + rb')"[^{\[\r\n]*\}\s*$)')
_DATA: Final = re.compile(rb"^data(?:: ?(.*))?$", re.MULTILINE)
_BREAK: Final = re.compile(rb"\r?\n\r?\n")
_LINE: Final = re.compile(rb"(?::[^\n]*)?\r?\n")
_BLANK: Final = re.compile(rb"(?:\r?\n)+")
_LONE_RETURN: Final = re.compile(rb"\r[^\n]")
_BREAK_OF_RETURNS: Final = re.compile(rb"(?>\r\n?|\n){2}")
_LINE_OF_RETURNS: Final = re.compile(rb"(?::[^\r\n]*)?(?:\r\n?|\n)")
_BLANK_OF_RETURNS: Final = re.compile(rb"[\r\n]+")


def data_of(frame: bytes) -> bytes | None:
    """Return the data of a frame, its lines joined; `None` if it has none. Lines must end in LF alone.

    Other fields may stand before the data, after it and between its lines.
    """
    lines = _DATA.findall(frame)
    return b"\n".join(lines) if lines else None


def says_nothing(data: bytes | None) -> bool:
    """Whether a frame with `data` has none, or only that of a keep-alive."""
    return data is None or _SAYS_NOTHING.match(data) is not None


def keeps_alive(frame: bytes) -> bool:
    """Whether the whole frame is a keep-alive and nothing else."""
    frame = with_line_feeds(frame)
    data = data_of(frame)
    return data is None or _NAMED.search(frame) is not None or says_nothing(data)


def with_line_feeds(text: bytes) -> bytes:
    """Return `text` with each line ended by LF alone."""
    return text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


class KeepAlives:
    """Separates the keep-alives from the beginning of a stream, up to its first content."""

    __slots__ = ("_blank", "_break", "_held", "_line", "_rest", "size")

    def __init__(self) -> None:
        self._break = _BREAK
        self._line = _LINE
        self._blank = _BLANK
        self._held: list[bytes] = []
        self._rest = b""
        self.size = 0  # bytes held back

    def feed(self, data: bytes) -> bytes:
        """Read the next part of the stream; return the keep-alives in it."""
        text = self._rest + data
        if _LONE_RETURN.search(text) is not None:
            self._break, self._line, self._blank = _BREAK_OF_RETURNS, _LINE_OF_RETURNS, _BLANK_OF_RETURNS
        alive: list[bytes] = []
        at = 0
        if (blank := self._blank.match(text)) is not None:  # it ends a comment that was passed on by itself
            alive.append(blank[0])
            at = blank.end()
        while (border := self._break.search(text, at)) is not None:
            frame = text[at : border.end()]
            (alive if keeps_alive(frame) else self._held).append(frame)
            at = border.end()
        while (line := self._line.match(text, at)) is not None:
            alive.append(line[0])
            at = line.end()
        self._rest = text[at:]
        self.size = sum(map(len, self._held)) + len(self._rest)
        return b"".join(alive)

    def rest(self) -> bytes:
        """Return all bytes that were held back, in order, and hold none."""
        held = b"".join((*self._held, self._rest))
        self._held.clear()
        self._rest = b""
        self.size = 0
        return held
