"""The client's connection is uvicorn's protocol; its states are in force in every contract test."""

from pathlib import Path

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from specpilot.gateway.relay.client_connection import ClientConnection


def test_nothing_private_of_uvicorns_protocol_is_used_or_replaced() -> None:
    private = {name for name in vars(HttpToolsProtocol) if name.startswith("_") and not name.startswith("__")}
    assert private  # it has some, and their names change from version to version
    assert private.isdisjoint(vars(ClientConnection))
    folder = Path(__file__).parents[4] / "gateway" / "relay"
    for module in ("client_reader", "client_connection"):
        source = (folder / f"{module}.py").read_text()
        assert not {name for name in private if f".{name}" in source}
