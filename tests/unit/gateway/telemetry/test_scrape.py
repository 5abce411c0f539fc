"""Who asks for the metrics at the same time shares one exposition, which began after they asked."""

import asyncio

import pytest

from specpilot.gateway.telemetry.scrape import RESTS, Scrape


class Made:
    """Expositions that take a given time; `begun` is when each began."""

    def __init__(self, seconds: float) -> None:
        self.begun: list[float] = []
        self.running = self.most = 0
        self.fails = False
        self._seconds = seconds

    async def __call__(self) -> bytes:
        self.begun.append(asyncio.get_running_loop().time())
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(self._seconds)
        self.running -= 1
        if self.fails:
            raise OSError("no room")
        return b"%d" % len(self.begun)


async def test_all_who_ask_meanwhile_share_the_next_one() -> None:
    made = Made(0.02)
    scrape = Scrape(made, asyncio.get_running_loop().time)
    first = asyncio.create_task(scrape.read())
    await asyncio.sleep(0.01)
    others = [asyncio.create_task(scrape.read()) for _ in range(50)]
    assert await first == b"1"
    assert {await other for other in others} == {b"2"}
    assert made.most == 1
    assert made.begun[1] - made.begun[0] >= 0.02 * (1 + RESTS) * 0.9
    assert await scrape.read() == b"3"


async def test_one_that_fails_is_made_again_for_who_still_waits() -> None:
    made = Made(0.01)
    scrape = Scrape(made, asyncio.get_running_loop().time)
    first = asyncio.create_task(scrape.read())
    await asyncio.sleep(0.005)
    second, third = asyncio.create_task(scrape.read()), asyncio.create_task(scrape.read())
    await first
    made.fails = True
    with pytest.raises(OSError, match="no room"):
        await second
    made.fails = False
    assert await third == b"3"
