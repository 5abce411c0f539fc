"""TCP asks on silent connections whether the peer is still there, on both sides of the gateway."""

import asyncio
import socket
import ssl
from pathlib import Path
from typing import Any

from tests.contract.conftest import StartGateway, StartProgram
from tests.support.certificates import Authority
from tests.support.gateway_client import Client, request
from tests.support.gateway_server import GatewayThread, eventually
from tests.support.scripted_engine import ScriptedEngine

Options = tuple[int, int, int, int]


def options_of(transport: Any) -> Options:
    found = transport.get_extra_info("socket")
    tcp = [found.getsockopt(socket.IPPROTO_TCP, name) for name in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL)]
    count = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT)
    return (found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE), *tcp, count)


async def both_sides(gateway: GatewayThread, client: Client) -> tuple[Options, Options]:
    client.send(request())
    assert (await client.answer()).status == 200
    [to_client] = gateway.context.connections
    [engine] = gateway.context.fleet.engines.values()
    await eventually(lambda: engine.pool._idle)
    return options_of(to_client.transport), options_of(engine.pool._idle[0].transport)


async def test_a_minute_unless_set_otherwise_and_off_at_0(engine: ScriptedEngine, start_gateway: StartGateway) -> None:
    for settings, wanted in (
        ({}, (1, 60, 60, 3)),
        ({"tcp_keep_alive_s": 7}, (1, 7, 7, 3)),
        ({"tcp_keep_alive_s": 0}, (0,)),
    ):
        gateway = await start_gateway(engine, **settings)
        async with await Client.connect(gateway.port) as client:
            assert [side[: len(wanted)] for side in await both_sides(gateway, client)] == [wanted, wanted]


async def test_under_tls_too(start_gateway: StartGateway, tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    (cert, key), ca = authority.issue("gateway"), str(authority.path)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(cert, key)
    async with ScriptedEngine(tls=server) as engine:
        gateway = await start_gateway(
            engine, engine_ca_file=ca, tls_cert_file=cert, tls_key_file=key, tcp_keep_alive_s=7
        )
        context = ssl.create_default_context(cafile=ca)
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, ssl=context)
        async with Client(reader, writer) as client:
            assert await both_sides(gateway, client) == ((1, 7, 7, 3), (1, 7, 7, 3))


KEEP_ALIVE_TIMER = "02"


def timers(port: int) -> list[str]:
    """The timers that run on the connections to `port` of this machine, at the end of whoever listens there."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [line[5][:2] for line in lines if int(line[1].split(":")[1], 16) == port and line[3] == "01"]


async def test_of_every_worker_and_on_the_operators_port(start_workers: StartProgram) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        admin_port = free.getsockname()[1]
    program = await start_workers("--admin-port", str(admin_port))
    clients = [await Client.connect(port) for port in [program.port] * 12 + [admin_port]]
    try:
        for port, count in ((program.port, 12), (admin_port, 1)):
            await eventually(lambda port=port, count=count: timers(port) == [KEEP_ALIVE_TIMER] * count)
    finally:
        for client in clients:
            client.abort()
