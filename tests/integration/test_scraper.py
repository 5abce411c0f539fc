"""The collector before real servers: how many it asks at once, and from when an engine's time counts."""

import asyncio
from dataclasses import replace

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from specpilot.controller.telemetry.scraper import Collector
from specpilot.policy.clock import SystemClock
from specpilot.policy.engine_metrics import TRIALS
from specpilot.policy.records import EngineRecord
from tests.support.gateway_server import eventually
from tests.support.hand_clock import Clock

RECORD = EngineRecord("e", "http://e", "m", "p", 7, 3, 32, "eagle3", "0.32.0", "0.1.0", 1.0, 1.0)
PAGE = f'{TRIALS}{{model_name="m",band="3",position="1"}} 10\n'
TIMEOUT_S = 200.0  # less than the five minutes after which the session itself gives up


async def test_an_engines_time_counts_from_when_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six engines, two at once: the last ones are asked when the first have answered, and are not late for that."""
    waiting: list[asyncio.Event] = []
    loop = asyncio.get_running_loop()
    now, ahead_s = loop.time, 0.0
    monkeypatch.setattr(loop, "time", lambda: now() + ahead_s)

    async def metrics(request: web.Request) -> web.Response:
        del request
        waiting.append(asyncio.Event())
        await waiting[-1].wait()
        return web.Response(text=PAGE)

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        engines = [replace(RECORD, engine_id=f"e{number}", url=str(server.make_url(""))) for number in range(6)]
        collector = Collector(session, SystemClock(), timeout_s=TIMEOUT_S, at_once=2)
        scraping = asyncio.create_task(collector.scrape(engines))
        for asked in (2, 4, 6):
            await eventually(lambda asked=asked: len(waiting) >= asked)
            assert len(waiting) == asked
            ahead_s += 0.8 * TIMEOUT_S
            for event in waiting:
                event.set()
        found = await scraping
    assert [item.engine_id for item in found] == [engine.engine_id for engine in engines]


async def test_a_data_parallel_rank_gets_its_own_counters() -> None:
    async def metrics(request: web.Request) -> web.Response:
        page = PAGE.replace("10", f"1{request.query['engine']}") if request.query.getall("name[]", ()) else ""
        return web.Response(text=page)

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        engines = [replace(RECORD, engine_id=f"e-dp{rank}", url=str(server.make_url("")), rank=rank) for rank in (0, 2)]
        found = await Collector(session, SystemClock()).scrape(engines)
    assert {item.engine_id: [*item.values.values()] for item in found} == {"e-dp0": [10.0], "e-dp2": [12.0]}


async def test_an_engine_that_was_never_read_has_an_age_from_when_it_is_known() -> None:
    """Without one, the alert for engines that cannot be scraped would be silent for it."""
    clock = Clock()
    async with aiohttp.ClientSession() as session:
        collector = Collector(session, clock)
        unreachable = replace(RECORD, url="http://127.0.0.1:9")
        known_at = clock.monotonic()
        for _ in range(3):
            assert await collector.scrape([unreachable]) == []
            clock.at += 5.0
        assert collector.scraped_at == {"e": known_at}
        await collector.scrape([])
        assert collector.scraped_at == {}
