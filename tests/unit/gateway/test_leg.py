import asyncio
import time
from collections import Counter
from types import SimpleNamespace
from typing import Any

from gateway.leg import Leg


class Traveller:
    def __init__(self) -> None:
        self.heard: asyncio.Queue[str] = asyncio.Queue()

    def connected(self) -> None:
        self.heard.put_nowait("connected")

    def unconnected(self, reason: str) -> None:
        self.heard.put_nowait(reason)


class Pool:
    """Connecting takes `seconds` the first time and nothing after that."""

    def __init__(self, seconds: float) -> None:
        self._seconds = [seconds]

    def take(self, _now: float) -> None:
        return None

    async def connect(self) -> object:
        await asyncio.sleep(self._seconds.pop() if self._seconds else 0)
        return object()


def leg_to(pool: Pool) -> tuple[Leg, Traveller, Counter[str]]:
    errors: Counter[str] = Counter()
    standing = SimpleNamespace(fail=lambda _now, *, is_connect: errors.update(fail=1))
    engine: Any = SimpleNamespace(pool=pool, standing=standing, outstanding_requests=0, outstanding_tokens=0)
    plane: Any = SimpleNamespace(
        monotonic=time.monotonic,
        spawn=lambda task: task,
        limits=SimpleNamespace(connect_timeout_s=0.1),
        metrics=SimpleNamespace(count_upstream_error=lambda reason: errors.update({reason: 1})),
        admission=None,
    )
    traveller: Any = Traveller()
    return Leg(plane, engine, 1, traveller), traveller, errors


async def test_an_engine_that_takes_too_long_to_connect_to_is_blamed() -> None:
    leg, traveller, errors = leg_to(Pool(5.0))
    leg.begin(is_fresh=False)
    assert await traveller.heard.get() == "connect_timeout"
    assert errors == {"connect_timeout": 1, "fail": 1}


async def test_a_process_that_stood_still_connects_again_and_blames_nobody() -> None:
    """The connection would have stood in time, but this process did not look."""
    leg, traveller, errors = leg_to(Pool(0.05))
    leg.begin(is_fresh=False)
    asyncio.get_running_loop().call_later(0.01, time.sleep, 0.5)
    assert await traveller.heard.get() == "connected"
    leg, traveller, errors = leg_to(Pool(5.0))
    leg.begin(is_fresh=False)
    asyncio.get_running_loop().call_later(0.01, time.sleep, 0.5)
    assert await traveller.heard.get() == "connected"
    assert not errors
