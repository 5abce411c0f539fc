from itertools import product
from pathlib import Path

import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from specpilot.gateway.relay import connection_state as states
from specpilot.gateway.relay.client_connection import ClientConnection
from specpilot.gateway.relay.connection_state import READING, WRITING, ConnectionState


@pytest.mark.parametrize("table", [READING, WRITING])
def test_every_state_can_be_reached_and_left_for_its_last(table: dict[str, dict[str, str]]) -> None:
    reached = {states.IDLE}
    for _ in table:
        reached |= {to for state in reached for to in table[state].values()}
    assert reached == set(table)
    last = "ignored" if table is READING else "closing"
    assert all(last in events.values() for events in table.values())
    assert set(table[last].values()) == {last}


def test_a_request_that_asks_for_an_upgrade_is_read_again_without() -> None:
    state = ConnectionState()
    seen = []
    for event in ("begin", "head_end", "upgrade_asked", "request_end", "begin", "head_end", "request_end"):
        state.read(event)
        seen.append(state.reading)
    assert seen == ["head", "body", "upgrade", "upgrade", "head", "body", "idle"]


def test_a_held_request_starts_once_the_client_has_read() -> None:
    state = ConnectionState()
    for event in ("start", "done", "hold", "hold", "start"):
        state.write(event)
    assert state.writing == "answering"


@pytest.mark.parametrize(("state", "event"), [*product(["idle"], ["head_end", "request_end"]), ("head", "request_end")])
def test_what_the_table_does_not_name_is_a_fault(state: str, event: str) -> None:
    connection = ConnectionState()
    connection.reading = state
    with pytest.raises(KeyError):
        connection.read(event)


def test_nothing_private_of_uvicorns_protocol_is_used_or_replaced() -> None:
    private = {name for name in vars(HttpToolsProtocol) if name.startswith("_") and not name.startswith("__")}
    assert private  # it has some, and their names change from version to version
    assert private.isdisjoint(vars(ClientConnection))
    folder = Path(__file__).parents[4] / "gateway" / "relay"
    for module in ("answer_queue", "client_connection"):
        source = (folder / f"{module}.py").read_text()
        assert not {name for name in private if f".{name}" in source}
