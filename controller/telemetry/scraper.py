"""Fetches the engines' counters, `AT_ONCE` engines at the same time, each within a time limit.

An engine that fails or is slow does not delay the others and yields no observation: unknown, not zero. The scraper
sends the `name[]` query of Prometheus client libraries, so that only the adapter's series are transferred. From a
server that answers this query with an empty page (the multi-process registry does) the whole page is requested until it
restarts. Of a server with data-parallel ranks each engine's part is requested by its rank (`engine`).
"""

import asyncio
import logging
from collections.abc import Sequence

import aiohttp

from specpilot.controller.estimation.observation import LABELS, Observation, Series
from specpilot.controller.telemetry.exposition import PageReader
from specpilot.policy.clock import Clock
from specpilot.policy.engine_metrics import LABEL_ENGINE
from specpilot.policy.records import EngineRecord
from specpilot.policy.settings import without_secrets

TIMEOUT_S = 1.0
"""Seconds in which an engine must answer, from the start of its own request."""

AT_ONCE = 256
"""Engines scraped at the same time. Parsing a page takes about 1 ms on the one event loop: with a thousand at once the
last pages would miss `TIMEOUT_S` while the first are parsed. Five hundred hung engines delay a tick by two seconds."""

_LARGEST_PAGE_BYTES = 32 << 20
_QUERY = [("name[]", name) for name in LABELS]
_log = logging.getLogger(__name__)


class Collector:
    """Scrapes engines over one HTTP session, which its owner closes.

    `scraped_at` is the time of each engine's last scrape; before the first, the time since which it is registered.
    """

    def __init__(
        self, session: aiohttp.ClientSession, clock: Clock, timeout_s: float = TIMEOUT_S, at_once: int = AT_ONCE
    ) -> None:
        self._room = asyncio.Semaphore(at_once)
        self._session = session
        self._clock = clock
        self._timeout_s = timeout_s
        self._whole_page: set[tuple[str, float]] = set()  # of engines by id and start
        self._readers: dict[str, PageReader] = {}
        self._failing: set[str] = set()
        self.scraped_at: dict[str, float] = {}

    async def scrape(self, engines: Sequence[EngineRecord]) -> list[Observation]:
        """Return an observation of every engine that answered in time."""
        ids, now = {engine.engine_id for engine in engines}, self._clock.monotonic()
        self.scraped_at = {name: self.scraped_at.get(name, now) for name in ids}
        self._readers = {name: reader for name, reader in self._readers.items() if name in ids}
        self._failing &= ids
        self._whole_page &= {(engine.engine_id, engine.started_at) for engine in engines}
        observations = await asyncio.gather(*(self._scrape_one(engine) for engine in engines))
        return [item for item in observations if item is not None]

    async def _scrape_one(self, engine: EngineRecord) -> Observation | None:
        try:
            async with self._room, asyncio.timeout(self._timeout_s):
                values = await self._values(engine)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            if engine.engine_id not in self._failing:
                _log.warning(
                    "engine %s at %s: no metrics: %s",
                    engine.engine_id,
                    without_secrets(engine.url),
                    str(error) or "too slow",
                )
                self._failing.add(engine.engine_id)
            return None
        self._failing.discard(engine.engine_id)
        at = self.scraped_at[engine.engine_id] = self._clock.monotonic()
        return Observation(engine.engine_id, engine.model, engine.pool, at, engine.started_at, values)

    async def _values(self, engine: EngineRecord) -> dict[Series, float]:
        url, start = engine.url.rstrip("/") + "/metrics", (engine.engine_id, engine.started_at)
        of_rank = [] if engine.rank is None else [(LABEL_ENGINE, str(engine.rank))]
        reader = self._readers.setdefault(engine.engine_id, PageReader())
        if start not in self._whole_page:
            values = reader.read(await self._page(url, _QUERY + of_rank))
            if values:
                return values
        values = reader.read(await self._page(url, of_rank))
        if values:
            self._whole_page.add(start)
        return values

    async def _page(self, url: str, query: list[tuple[str, str]]) -> str:
        async with self._session.get(url, params=query, allow_redirects=True) as response:
            response.raise_for_status()
            body = await response.content.read(_LARGEST_PAGE_BYTES)
            while not response.content.at_eof() and len(body) < _LARGEST_PAGE_BYTES:
                body += await response.content.read(_LARGEST_PAGE_BYTES - len(body))
            return body.decode("utf-8", errors="replace")
