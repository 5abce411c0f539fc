"""The states of one client connection, as two tables: reading from the client and writing to it. Pure.

The two are independent, as in h11, because a client may send its next request before it has its answer.

| reading   | meaning                                                             |
|-----------|---------------------------------------------------------------------|
| `IDLE`    | between requests                                                    |
| `HEAD`    | within a request's line and headers                                 |
| `BODY`    | from there to the request's end                                     |
| `UPGRADE` | the head asked to change protocols and is parsed again without that |
| `IGNORED` | further bytes are dropped                                           |

| writing     | meaning                                                                   |
|-------------|---------------------------------------------------------------------------|
| `IDLE`      | no request waits for its answer                                           |
| `ANSWERING` | one request is answered                                                   |
| `HELD`      | the next request waits until the client has read the bytes written so far |
| `CLOSING`   | the last byte has been written                                            |

Two things are no states: the time at which a state began, and the bytes of a last local reply that waits for the
answers before it.
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
"""The first byte of a request."""
HEAD_END: Final = "head_end"
UPGRADE_ASKED: Final = "upgrade_asked"
REQUEST_END: Final = "request_end"
STOP: Final = "stop"
"""No further request can or may be read."""

START: Final = "start"
"""The answer to a request begins."""
HOLD: Final = "hold"
DONE: Final = "done"
"""An answer has ended: complete, a local reply, or dropped."""
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
    """The two states of one connection."""

    __slots__ = ("reading", "writing")

    def __init__(self) -> None:
        self.reading: str = IDLE
        self.writing: str = IDLE

    def read(self, event: str) -> None:
        """Change the reading state. Raises `KeyError`, a fault of the gateway, for an event that the table lacks."""
        self.reading = READING[self.reading][event]

    def write(self, event: str) -> None:
        """Change the writing state. Raises `KeyError` as `read` does."""
        self.writing = WRITING[self.writing][event]
