"""Connecting to an engine that does not take connections, and to one that does while nobody here looks."""

import asyncio
import socket
import threading
import time

from gateway.app import create_app
from gateway.leg import STOOD_STILL_S, Leg
from gateway.plane import Plane
from gateway.settings import GatewaySettings
from policy.clock import SystemClock

TIMEOUT_S = 0.1


class Traveller:
    """Hears how the attempt to connect ended."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[str] = asyncio.Queue()

    def connected(self) -> None:
        self.heard.put_nowait("connected")

    def unconnected(self, reason: str) -> None:
        self.heard.put_nowait(reason)


def attempt(port: int) -> tuple[Plane, Leg, Traveller]:
    settings = GatewaySettings(engine=(f"http://127.0.0.1:{port}",), connect_timeout_s=TIMEOUT_S)
    _, plane = create_app(settings, SystemClock(), None)
    [engine] = plane.fleet.engines.values()
    traveller = Traveller()
    return plane, Leg(plane, engine, 1, traveller), traveller  # type: ignore[arg-type] # it hears all that it may


def make_room(listener: socket.socket) -> None:
    """Take the connection that fills the line, so that the next one to come is let in."""
    listener.accept()[0].close()


async def test_an_engine_that_takes_too_long_to_connect_to_is_blamed(full_port: int) -> None:
    plane, leg, traveller = attempt(full_port)
    leg.begin(is_fresh=False)
    assert await traveller.heard.get() == "connect_timeout"
    assert plane.metrics.upstream_errors == {"connect_timeout": 1}
    leg.drop()


async def test_a_process_that_stood_still_while_it_connected_tries_again_and_blames_nobody() -> None:
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as listener,
        socket.create_connection(listener.getsockname()),
    ):
        plane, leg, traveller = attempt(listener.getsockname()[1])
        leg.begin(is_fresh=False)
        await asyncio.sleep(TIMEOUT_S / 2)
        threading.Timer(TIMEOUT_S / 2, make_room, [listener]).start()
        time.sleep(TIMEOUT_S + 2 * STOOD_STILL_S)  # noqa: ASYNC251 - standing still is the point
        async with asyncio.timeout(5):
            assert await traveller.heard.get() == "connected"
    assert not plane.metrics.upstream_errors
    leg.drop()
