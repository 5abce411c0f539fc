"""The states of one exchange (a request and its response), as a table. Pure.

| state     | meaning                                                          |
|-----------|------------------------------------------------------------------|
| `PENDING` | an earlier request on the connection has no complete answer yet  |
| `OPEN`    | the body arrives, or an engine is being chosen                   |
| `QUEUED`  | every engine is full                                             |
| `RELAYED` | an engine is chosen; `gateway.relay.relay` has phases of its own |
| `OVER`    | the response has ended, in any way                               |

Two things are no states: whether the body is whole, which may be so in every state, and an error that waits in
`PENDING` to be sent.
"""

from typing import Final

PENDING: Final = "pending"
OPEN: Final = "open"
QUEUED: Final = "queued"
RELAYED: Final = "relayed"
OVER: Final = "over"

TURN: Final = "turn"
"""Every earlier request on the connection has its answer."""
QUEUE: Final = "queue"
"""Every engine is full."""
ROOM: Final = "room"
"""An engine has room again."""
GO: Final = "go"
"""An engine is chosen."""
END: Final = "end"
"""The response is complete, reset, a local reply or dropped."""

TRANSITIONS: Final[dict[str, dict[str, str]]] = {
    PENDING: {TURN: OPEN, END: OVER},
    OPEN: {QUEUE: QUEUED, GO: RELAYED, END: OVER},
    QUEUED: {ROOM: OPEN, END: OVER},
    RELAYED: {END: OVER},
    OVER: {},
}


def after(state: str, event: str) -> str:
    """Return the next state. Raises `KeyError` for an event that the table does not allow: a fault of the gateway."""
    return TRANSITIONS[state][event]
