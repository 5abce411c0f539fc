"""The states of one client connection, as two tables: what may come from the client, and what goes to it. Pure.

The two run side by side, as in h11, because a client may send its next request while it still gets an answer.

Reading: `IDLE` between requests, `HEAD` within a request's line and headers, `BODY` from there to the request's end,
`UPGRADE` when the head asked to change protocols and is to be read again as if it had not, `IGNORED` when nothing that
comes is looked at any more.

Writing: `IDLE` when no request waits for its answer, `ANSWERING` while one is answered, `HELD` when the next request
waits until the client has read what was written, `CLOSING` when the last byte has been written.

What is no state of its own: when a state began, and the bytes of a last local reply that waits behind other answers.
"""

from typing import Final

IDLE: Final = "idle"
HEAD: Final = "head"
BODY: Final = "body"
UPGRADE: Final = "upgrade"
IGNORED: Final = "ignored"
ANSWERING: Final = "answering"
HELD: Final = "held"
CLOSING: Final = "closing"

BEGIN: Final = "begin"
"""A request's first byte."""
HEAD_END: Final = "head_end"
UPGRADE_ASKED: Final = "upgrade_asked"
REQUEST_END: Final = "request_end"
STOP: Final = "stop"
"""Nothing more can or shall be read."""

START: Final = "start"
"""A request's answer begins."""
HOLD: Final = "hold"
DONE: Final = "done"
"""An answer is over: complete, a local reply, or dropped."""
CLOSE: Final = "close"

READING: Final[dict[str, dict[str, str]]] = {
    IDLE: {BEGIN: HEAD, STOP: IGNORED},
    HEAD: {HEAD_END: BODY, STOP: IGNORED},
    BODY: {REQUEST_END: IDLE, UPGRADE_ASKED: UPGRADE, STOP: IGNORED},
    UPGRADE: {BEGIN: HEAD, REQUEST_END: UPGRADE, STOP: IGNORED},
    IGNORED: dict.fromkeys((BEGIN, HEAD_END, UPGRADE_ASKED, REQUEST_END, STOP), IGNORED),
}

WRITING: Final[dict[str, dict[str, str]]] = {
    IDLE: {START: ANSWERING, HOLD: HELD, CLOSE: CLOSING},
    ANSWERING: {DONE: IDLE, CLOSE: CLOSING},
    HELD: {START: ANSWERING, HOLD: HELD, CLOSE: CLOSING},
    CLOSING: dict.fromkeys((START, HOLD, DONE, CLOSE), CLOSING),
}


class ConnectionState:
    """Where one connection is in both tables."""

    __slots__ = ("reading", "writing")

    def __init__(self) -> None:
        self.reading: str = IDLE
        self.writing: str = IDLE

    def read(self, event: str) -> None:
        """Move the reading side. Raises `KeyError` for what the table does not allow: a fault of the gateway."""
        self.reading = READING[self.reading][event]

    def write(self, event: str) -> None:
        """Move the writing side. Raises `KeyError` as `read`."""
        self.writing = WRITING[self.writing][event]
