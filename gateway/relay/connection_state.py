"""The states of one client connection, as a table. Pure.

One request at a time is read and answered. Bytes of the next one that come before the answer has ended are kept.

| state       | meaning                                                                                 |
|-------------|-----------------------------------------------------------------------------------------|
| `IDLE`      | between requests: each so far has its answer                                            |
| `HEAD`      | within a request's line and headers                                                     |
| `BODY`      | from there to the request's end; it may be answered already, when its body has no use   |
| `UPGRADE`   | the head asked to change protocols and is parsed again without that                     |
| `ANSWERING` | the request is whole, and its answer has not ended                                      |
| `CLOSING`   | further bytes are dropped, and the connection ends with the answer under way, if any    |
"""

from typing import Final

IDLE: Final = "idle"
HEAD: Final = "head"
BODY: Final = "body"
UPGRADE: Final = "upgrade"
ANSWERING: Final = "answering"
CLOSING: Final = "closing"

BEGIN: Final = "begin"
"""The first byte of a request."""
HEAD_END: Final = "head_end"
UPGRADE_ASKED: Final = "upgrade_asked"
REQUEST_END: Final = "request_end"
ANSWERED: Final = "answered"
"""The answer has ended: complete, or a local reply."""
STOP: Final = "stop"
"""No further request can or may be read."""

TRANSITIONS: Final[dict[str, dict[str, str]]] = {
    IDLE: {BEGIN: HEAD, STOP: CLOSING},
    HEAD: {HEAD_END: BODY, STOP: CLOSING},
    BODY: {REQUEST_END: ANSWERING, UPGRADE_ASKED: UPGRADE, ANSWERED: BODY, STOP: CLOSING},
    UPGRADE: {BEGIN: HEAD, REQUEST_END: UPGRADE, STOP: CLOSING},
    ANSWERING: {ANSWERED: IDLE, STOP: CLOSING},
    CLOSING: dict.fromkeys((BEGIN, HEAD_END, UPGRADE_ASKED, REQUEST_END, ANSWERED, STOP), CLOSING),
}


def after(state: str, event: str) -> str:
    """Return the next state. Raises `KeyError` for an event that the table does not allow: a fault of the gateway."""
    return TRANSITIONS[state][event]
