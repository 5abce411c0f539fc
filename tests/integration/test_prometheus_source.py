"""A real Prometheus server between engines' pages and the law: the same counters, with their own times."""

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from specpilot.controller.telemetry.prometheus_source import PrometheusSource
from specpilot.controller.telemetry.scraper import Collector
from specpilot.policy import engine_metrics as names
from specpilot.policy.clock import SystemClock
from specpilot.policy.records import EngineRecord
from tests.support.http_server import Asked, HttpServer
from tests.support.loop_rig import Clock
from tests.support.patience import PATIENCE_S
from tests.support.stack import free_port

SERVER = shutil.which("prometheus", path="/usr/local/bin:/usr/bin")
needs_server = pytest.mark.skipif(SERVER is None, reason="no prometheus on this machine; Debian's package has one")


class Page(HttpServer):
    """An engine's page of metrics; `trials` grows by one with each scrape."""

    def __init__(self) -> None:
        self.trials = 0
        super().__init__(self._answer, "text/plain; version=0.0.4")

    def _answer(self, _: Asked) -> tuple[int, bytes]:
        self.trials += 1
        text = (
            f'{names.TRIALS}{{model_name="m",band="3",position="1",pid="1"}} {self.trials}\n'
            f'{names.TRIALS}{{model_name="m",band="3",position="1",pid="2"}} 100\n'
            f'{names.STEPS}{{model_name="m",kind="decode"}} 5\n'
            f'{names.DECODE_TOKENS}{{model_name="m",traffic_class="a \\"b\\"",band="3"}} 9\n'
            f'{names.BACKLOG_TOKENS}{{model_name="m"}} 0\nprocess_open_fds 7\n'
        )
        return 200, text.encode()


RANK = EngineRecord("e", "http://e", "m", "default", 7, 7, 32, "eagle3", "0.32.0", "0.1.0", 1.0, 1.0)


def engine(page: Page, name: str) -> EngineRecord:
    return replace(RANK, engine_id=name, url=page.url)


@pytest.fixture
def pages() -> Iterator[list[Page]]:
    found = [Page(), Page()]
    yield found
    for page in found:
        page.close()


@pytest.fixture
def server(pages: list[Page], tmp_path: Path) -> Iterator[str]:
    port = free_port()
    targets = ", ".join(f'"{page.url.removeprefix("http://")}"' for page in pages)
    (tmp_path / "prometheus.yml").write_text(
        f"global:\n  scrape_interval: 300ms\n  scrape_timeout: 250ms\n"
        f"scrape_configs:\n  - job_name: engines\n    static_configs:\n      - targets: [{targets}]\n"
    )
    assert SERVER is not None
    process = subprocess.Popen(
        [
            SERVER, f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.wait(PATIENCE_S)


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as subject:
        yield subject


@needs_server
async def test_the_server_tells_what_the_engines_tell(
    pages: list[Page], server: str, session: aiohttp.ClientSession
) -> None:
    engines = [engine(page, f"engine-{index}") for index, page in enumerate(pages)]
    mistaken = [
        replace(engine(pages[0], url), url=url) for url in ("http://fd00::5:8000", "http://h:80000", "h:${PORT}")
    ]
    source = PrometheusSource(session, SystemClock(), server)
    async with asyncio.timeout(PATIENCE_S):
        found = await source.scrape([*mistaken, *engines])
        while len(found) < 2:
            await asyncio.sleep(0.2)
            found = await source.scrape([*mistaken, *engines])
    direct = await Collector(session, SystemClock()).scrape(engines)
    assert [item.engine_id for item in found] == ["engine-0", "engine-1"]
    for mine, theirs in zip(found, direct, strict=True):
        assert mine.values.keys() == theirs.values.keys()
        differing = {series for series, value in mine.values.items() if value != theirs.values[series]}
        assert {series.metric for series in differing} <= {names.TRIALS}
        assert 0 <= SystemClock().monotonic() - mine.at < PATIENCE_S


@needs_server
async def test_one_scrape_is_one_observation_and_the_next_is_newer(
    pages: list[Page], server: str, session: aiohttp.ClientSession
) -> None:
    source = PrometheusSource(session, SystemClock(), server)
    seen: dict[float, float] = {}
    async with asyncio.timeout(PATIENCE_S):
        while len(seen) < 3:
            for item in await source.scrape([engine(pages[0], "engine-0")]):
                trials = sum(value for series, value in item.values.items() if series.metric == names.TRIALS)
                assert seen.setdefault(item.at, trials) == trials
            await asyncio.sleep(0.1)
    assert list(seen.values()) == sorted(seen.values())


async def test_a_silent_server_is_no_evidence(session: aiohttp.ClientSession, pages: list[Page]) -> None:
    clock = Clock()
    known_at = clock.monotonic()
    source = PrometheusSource(session, clock, f"http://127.0.0.1:{free_port()}")
    for _ in range(2):
        assert await source.scrape([engine(pages[0], "engine-0")]) == []
        clock.at += 5.0
    assert source.scraped_at == {"engine-0": known_at}  # its age grows, and the alert comes
    source = PrometheusSource(session, SystemClock(), pages[0].url)  # answers, but not as Prometheus does
    assert await source.scrape([engine(pages[0], "engine-0")]) == []


@pytest.mark.parametrize("by", ["instance", "engine_id"])
async def test_the_ranks_of_a_server_are_told_apart(by: str, session: aiohttp.ClientSession) -> None:
    labels = {"instance": "a:8000"} | ({"engine_id": "a"} if by == "engine_id" else {})

    async def query(request: web.Request) -> web.Response:
        if (await request.post())["query"] == "time()":
            return web.json_response({"data": {"result": [100.0, "100.0"]}})
        series = [labels | {"__name__": names.STEPS, "kind": "decode", "engine": str(rank)} for rank in range(2)]
        result = [{"metric": metric, "values": [[99.0, f"{7 + rank}"]]} for rank, metric in enumerate(series)]
        return web.json_response({"data": {"result": result}})

    app = web.Application()
    app.router.add_post("/api/v1/query", query)
    async with TestServer(app) as prometheus:
        source = PrometheusSource(session, SystemClock(), str(prometheus.make_url("")))
        url = "http://a:8000" if by == "instance" else "http://elsewhere:8000"
        found = await source.scrape([replace(RANK, engine_id=f"a-dp{rank}", url=url, rank=rank) for rank in range(3)])
    assert {item.engine_id: [*item.values.values()] for item in found} == {"a-dp0": [7.0], "a-dp1": [8.0]}
