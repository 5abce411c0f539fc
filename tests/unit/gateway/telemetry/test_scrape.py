"""Who asks for the metrics at the same time shares one exposition, which began after they asked."""

import asyncio
from types import SimpleNamespace

import pytest

from specpilot.gateway.telemetry import scrape as module
from specpilot.gateway.telemetry.scrape import RESTS, Scrape
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


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds of each pause, which ends at once."""
    found: list[float] = []
    sleep = asyncio.sleep

    async def pause(seconds: float) -> None:
        found.append(seconds)
        await sleep(0)

    monkeypatch.setattr(module, "asyncio", SimpleNamespace(sleep=pause, Lock=asyncio.Lock))
    return found


async def test_all_who_ask_meanwhile_share_the_next_one(pauses: list[float]) -> None:
    made, clock = Made(), Clock()
    scrape = Scrape(made, clock.monotonic)
    first = asyncio.create_task(scrape.read())
    await turns()
    others = [asyncio.create_task(scrape.read()) for _ in range(50)]
    await turns()
    clock.at += 0.02
    made.gates[0].set()
    assert await first == b"1"
    await turns()
    assert pauses == [0.0, pytest.approx(0.02 * RESTS)]
    made.gates[1].set()
    assert {await other for other in others} == {b"2"}
    assert made.most == 1
    last = asyncio.create_task(scrape.read())
    await turns()
    made.gates[2].set()
    assert await last == b"3"


async def test_one_that_fails_is_made_again_for_who_still_waits(pauses: list[float]) -> None:
    made = Made()
    scrape = Scrape(made, Clock().monotonic)
    first = asyncio.create_task(scrape.read())
    await turns()
    second, third = asyncio.create_task(scrape.read()), asyncio.create_task(scrape.read())
    await turns()
    made.gates[0].set()
    await first
    await turns()
    made.fails = True
    made.gates[1].set()
    with pytest.raises(OSError, match="no room"):
        await second
    await turns()
    made.fails = False
    made.gates[2].set()
    assert await third == b"3"
