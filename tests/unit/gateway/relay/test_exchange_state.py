"""The table of an exchange's states: what may follow what, and that every state ends."""

import pytest

from specpilot.gateway.relay.exchange_state import (
    END,
    GO,
    OPEN,
    OVER,
    PENDING,
    QUEUE,
    QUEUED,
    RELAYED,
    ROOM,
    TRANSITIONS,
    TURN,
    after,
)


@pytest.mark.parametrize(
    ("events", "states"),
    [
        ((TURN, GO, END), (OPEN, RELAYED, OVER)),
        ((TURN, QUEUE, ROOM, GO, END), (OPEN, QUEUED, OPEN, RELAYED, OVER)),
        ((TURN, QUEUE, ROOM, END), (OPEN, QUEUED, OPEN, OVER)),  # no engine after all
        ((END,), (OVER,)),  # the client left before its turn
    ],
)
def test_a_request_goes_through_the_states_in_order(events: tuple[str, ...], states: tuple[str, ...]) -> None:
    state, found = PENDING, []
    for event in events:
        state = after(state, event)
        found.append(state)
    assert tuple(found) == states


def test_every_state_but_the_last_may_end_and_nothing_follows_that() -> None:
    assert {state for state, events in TRANSITIONS.items() if events.get(END) == OVER} == set(TRANSITIONS) - {OVER}
    assert TRANSITIONS[OVER] == {}


@pytest.mark.parametrize(("state", "event"), [(PENDING, GO), (QUEUED, GO), (RELAYED, QUEUE), (OVER, END), (OPEN, TURN)])
def test_what_the_table_does_not_allow_is_a_fault(state: str, event: str) -> None:
    with pytest.raises(KeyError):
        after(state, event)
