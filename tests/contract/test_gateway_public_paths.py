"""With --public-paths another machine gets those paths alone; who is on the gateway's own machine gets every path."""

import asyncio
import socket

import pytest

from tests.contract.conftest import StartProgram
from tests.support.gateway_client import Answer, Client, request


def own_address() -> str | None:
    """An address of this machine that is not the loopback's; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        found: str = probe.getsockname()[0]
    return None if found.startswith("127.") else found


OUTSIDE = own_address()
pytestmark = pytest.mark.skipif(OUTSIDE is None, reason="this machine has the loopback only")


@pytest.fixture
async def port(start_program: StartProgram) -> int:
    return (await start_program("--host", "0.0.0.0", "--public-paths", "/ping,/invocations")).port


async def ask(host: str, port: int, data: bytes) -> Answer:
    reader, writer = await asyncio.open_connection(host, port)
    async with Client(reader, writer) as client:
        client.send(data)
        return await client.answer()


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode()


async def test_two_paths_are_served_to_others_and_all_to_callers_here(port: int) -> None:
    assert OUTSIDE is not None
    for host in (OUTSIDE, "127.0.0.1"):
        assert (await ask(host, port, get("/ping?x=1"))).status == 200
        assert (await ask(host, port, request(path="/invocations"))).status == 200
    closed = [get(path) for path in ("/metrics", "/v1/models", "/ready", "/ping/", "http://x/ping", "/admin/config")]
    closed.append(request(path="/v1/chat/completions"))
    for data in closed:
        assert (await ask(OUTSIDE, port, data)).status == 404
    answer = await ask(OUTSIDE, port, get("/metrics"))
    assert "/not-served-to-other-machines/metrics" in answer.json["error"]["message"]
    assert (await ask("127.0.0.1", port, get("/metrics"))).status == 200
    assert (await ask("127.0.0.1", port, request())).status == 200


async def test_each_request_of_one_connection_is_judged(port: int) -> None:
    assert OUTSIDE is not None
    reader, writer = await asyncio.open_connection(OUTSIDE, port)
    async with Client(reader, writer) as client:
        client.send(request(path="/invocations") + request() + get("/ping"))
        assert [(await client.answer()).status for _ in range(3)] == [200, 404, 200]
