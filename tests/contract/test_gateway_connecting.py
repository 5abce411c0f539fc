"""Connecting to an engine that does not take connections, and to one that does while nobody here looks."""

import asyncio
import socket

from specpilot.gateway.app import create_context
from specpilot.gateway.engines.probe import STOOD_STILL_S
from specpilot.gateway.relay.attempt import Attempt
from specpilot.gateway.relay.context import GatewayContext
from specpilot.gateway.settings import GatewaySettings
from tests.support.hand_clock import Clock
from tests.support.patience import PATIENCE_S

TIMEOUT_S = 0.8
"""Less than the second after which the system itself would ask the listener again."""


class AttemptReader:
    """Hears how the attempt to connect ended."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[str] = asyncio.Queue()

    def connecting(self) -> None:
        pass

    def connected(self) -> None:
        self.heard.put_nowait("connected")

    def unconnected(self, reason: str) -> None:
        self.heard.put_nowait(reason)


def new_attempt(port: int, clock: Clock) -> tuple[GatewayContext, Attempt, AttemptReader]:
    settings = GatewaySettings(engine=(f"http://127.0.0.1:{port}",), connect_timeout_s=TIMEOUT_S)
    context = create_context(settings, clock, None)
    [engine] = context.fleet.engines.values()
    reader = AttemptReader()
    return context, Attempt(context, engine, 1, reader), reader  # type: ignore[arg-type] # it hears all that it may


def make_room(listener: socket.socket) -> None:
    """Take the connection that fills the line, so that the next one to come is let in."""
    listener.accept()[0].close()


async def test_a_process_that_stood_still_while_it_connected_tries_again_and_blames_nobody() -> None:
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as listener,
        socket.create_connection(listener.getsockname()),
    ):
        clock = Clock()
        context, attempt, reader = new_attempt(listener.getsockname()[1], clock)
        attempt.acquire_connection(is_fresh=False)
        for _ in range(10):
            await asyncio.sleep(0)  # it connects
        clock.at += TIMEOUT_S + 2 * STOOD_STILL_S  # so late it is when the time-out fires
        make_room(listener)
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.heard.get() == "connected"
    assert not context.metrics.upstream_errors
    attempt.drop()
