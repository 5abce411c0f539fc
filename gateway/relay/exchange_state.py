"""The states of one exchange (a request and its response), as a table. Pure.

| state     | meaning                                                          |
|-----------|------------------------------------------------------------------|
| `PENDING` | an earlier request on the connection has no complete answer yet  |
| `REQUEST` | the body arrives, or an engine is being chosen                   |
| `QUEUE`   | every engine is full                                             |
| `RELAYED` | an engine is chosen; `gateway.relay.relay` has phases of its own |
| `OVER`    | the response has ended, in any way                               |

`REQUEST` and `QUEUE` are phases of the access log too.

Two things are no states: whether the body is whole, which may be so in every state, and an error that waits in
`PENDING` to be sent.
"""

from typing import Final

PENDING: Final = "pending"
REQUEST: Final = "request"
QUEUE: Final = "queue"
RELAYED: Final = "relayed"
OVER: Final = "over"

TURN: Final = "turn"
"""Every earlier request on the connection has its answer."""
FULL: Final = "full"
"""Every engine is full."""
ROOM: Final = "room"
"""An engine has room again."""
GO: Final = "go"
"""An engine is chosen."""
END: Final = "end"
"""The response is complete, reset, a local reply or dropped."""

TRANSITIONS: Final[dict[str, dict[str, str]]] = {
    PENDING: {TURN: REQUEST, END: OVER},
    REQUEST: {FULL: QUEUE, GO: RELAYED, END: OVER},
    QUEUE: {ROOM: REQUEST, END: OVER},
    RELAYED: {END: OVER},
    OVER: {},
}


def after(state: str, event: str) -> str:
    """Return the next state. Raises `KeyError` for an event that the table does not allow: a fault of the gateway."""
    return TRANSITIONS[state][event]
