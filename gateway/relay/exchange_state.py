"""The states of one exchange, as a table. Pure.

`PENDING` while an earlier request on its connection is still answered. `OPEN` from its turn on: its body comes in, or
an engine is being chosen. `QUEUED` while every engine is full. `RELAYED` from the choice of an engine on, where
`gateway.relay.relay` has phases of its own. `OVER` when its response is, however it ended.

What is no state of its own: whether the whole body is there, which may be so in every state, and a refusal that waits
for its turn.
"""

from typing import Final

PENDING: Final = "pending"
OPEN: Final = "open"
QUEUED: Final = "queued"
RELAYED: Final = "relayed"
OVER: Final = "over"

TURN: Final = "turn"
"""Every earlier request on the connection has had its answer."""
QUEUE: Final = "queue"
"""Every engine is full."""
ROOM: Final = "room"
"""An engine has room again."""
GO: Final = "go"
"""An engine is chosen."""
END: Final = "end"
"""Complete, reset, a local reply or dropped."""

TRANSITIONS: Final[dict[str, dict[str, str]]] = {
    PENDING: {TURN: OPEN, END: OVER},
    OPEN: {QUEUE: QUEUED, GO: RELAYED, END: OVER},
    QUEUED: {ROOM: OPEN, END: OVER},
    RELAYED: {END: OVER},
    OVER: {},
}


def after(state: str, event: str) -> str:
    """Return the state that follows. Raises `KeyError` for what the table does not allow: a fault of the gateway."""
    return TRANSITIONS[state][event]
