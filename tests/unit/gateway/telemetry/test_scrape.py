"""Who asks for the metrics at the same time shares one exposition, which began after they asked."""

import asyncio

import pytest

from specpilot.gateway.telemetry.scrape import RESTS, Scrape
from tests.support.gateway_server import eventually
from tests.support.hand_clock import Clock


class Made:
    """Expositions that each end when the test says so."""

    def __init__(self) -> None:
        self.gates: list[asyncio.Event] = []
        self.running = self.most = 0
        self.fails = False

    async def __call__(self) -> bytes:
        self.gates.append(asyncio.Event())
        number = len(self.gates)
        self.running += 1
        self.most = max(self.most, self.running)
        await self.gates[-1].wait()
        self.running -= 1
        if self.fails:
            raise OSError("no room")
        return b"%d" % number


async def turns() -> None:
    """Let all tasks go on up to what they wait for."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_all_who_ask_meanwhile_share_the_next_one_after_a_pause() -> None:
    made, clock = Made(), Clock()
    scrape = Scrape(made, clock.monotonic)
    first = asyncio.create_task(scrape.read())
    await turns()
    others = [asyncio.create_task(scrape.read()) for _ in range(50)]
    await turns()
    clock.at += 0.02
    made.gates[0].set()
    assert await first == b"1"
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    await eventually(lambda: len(made.gates) == 2)
    assert loop.time() - began_at > 0.019 * RESTS
    made.gates[1].set()
    assert {await other for other in others} == {b"2"}
    assert made.most == 1
    last = asyncio.create_task(scrape.read())
    await turns()
    made.gates[2].set()
    assert await last == b"3"


async def test_one_that_fails_is_made_again_for_who_still_waits() -> None:
    made = Made()
    scrape = Scrape(made, Clock().monotonic)
    first, second, third = (asyncio.create_task(scrape.read()) for _ in range(3))
    await turns()
    made.fails = True
    made.gates[0].set()
    with pytest.raises(OSError, match="no room"):
        await first
    await turns()
    assert len(made.gates) == 2
    made.fails = False
    made.gates[1].set()
    assert [await second, await third] == [b"2", b"2"]
