"""Reads the engines' counters from a Prometheus server that scrapes them, instead of from the engines.

For fleets where the controller cannot reach the engines, or where only one program should scrape them. A target belongs
to the engine whose URL has the target's `instance` (host:port), or whose id is the target's label `engine_id`. The
target of a server with data-parallel ranks belongs to several engines, told apart by the label `engine`. All series of
a scrape have the same time stamp. Only the newest scrape of a target counts; reading it twice yields the same
observation twice. Ages are computed from the server's clock alone, so that its offset from this machine's clock has no
effect.

Evidence is as recent as the server's scrapes: they must come every second or two (`SCRAPED_EVERY_S`). An engine whose
newest scrape is more than `LOOK_BACK_S` old yields no observation.
"""

import asyncio
import logging
import math
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from specpilot.controller.estimation.observation import LABELS, Observation, Series
from specpilot.policy.clock import Clock
from specpilot.policy.engine_metrics import LABEL_ENGINE
from specpilot.policy.records import EngineRecord
from specpilot.policy.settings import without_secrets

TIMEOUT_S = 2.0
SCRAPED_EVERY_S = 2.0
"""Longest time between two scrapes of an engine by the server: a scrape older than 5 s changes no schedule."""

LOOK_BACK_S = 10
_SELECT = f'{{__name__=~"{"|".join(LABELS)}"}}[{LOOK_BACK_S}s]'
_log = logging.getLogger(__name__)


class PrometheusSource:
    """Queries the Prometheus server at `url` over an HTTP session that its owner closes.

    `scraped_at` is the time of each engine's newest scrape; before the first, the time since which it is registered.
    """

    def __init__(self, session: aiohttp.ClientSession, clock: Clock, url: str, timeout_s: float = TIMEOUT_S) -> None:
        self._session = session
        self._clock = clock
        self._query_url = url.rstrip("/") + "/api/v1/query"
        self._timeout_s = timeout_s
        self._scrapes: dict[str, tuple[float, float]] = {}  # engine id: time of its scrape on the server's clock, ours
        self._is_failing = False
        self.scraped_at: dict[str, float] = {}

    async def scrape(self, engines: Sequence[EngineRecord]) -> list[Observation]:
        """Return the newest scrape of every engine that the server scrapes; nothing when it does not answer."""
        ids = {engine.engine_id for engine in engines}
        self._scrapes = {name: times for name, times in self._scrapes.items() if name in ids}
        asked_at = self._clock.monotonic()
        self.scraped_at = {name: self.scraped_at.get(name, asked_at) for name in ids}
        try:
            async with asyncio.timeout(self._timeout_s):
                answers = await asyncio.gather(self._ask("time()"), self._ask(_SELECT))
            server_now, targets = float(answers[0][1]), _newest(answers[1])
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, KeyError, TypeError, IndexError) as error:
            if not self._is_failing:
                _log.warning("no metrics from %s: %s", without_secrets(self._query_url), str(error) or "too slow")
            self._is_failing = True
            return []
        self._is_failing = False
        observations = []
        for engine in engines:
            rank = str(engine.rank or 0)
            target = targets.get(("engine_id", engine.server_id, rank)) or targets.get(
                ("instance", _address(engine.url) or "", rank)
            )
            if target is None:
                continue
            scraped, values = target
            last = self._scrapes.get(engine.engine_id)
            at = last[1] if last is not None and last[0] == scraped else asked_at - max(0.0, server_now - scraped)
            self._scrapes[engine.engine_id] = (scraped, at)
            self.scraped_at[engine.engine_id] = at
            observations.append(Observation(engine.engine_id, engine.model, engine.pool, at, engine.started_at, values))
        return observations

    async def _ask(self, query: str) -> Any:
        async with self._session.post(self._query_url, data={"query": query}) as response:
            response.raise_for_status()
            return (await response.json())["data"]["result"]


def _newest(result: Sequence[Any]) -> dict[tuple[str, str, str], tuple[float, dict[Series, float]]]:
    """Return the time and the values of each target's newest scrape, by `engine_id` or `instance` and by rank."""
    targets: dict[tuple[str, str, str], tuple[float, dict[Series, float]]] = {}
    for item in result:
        labels = item["metric"]
        label_names = LABELS.get(labels["__name__"])
        if label_names is None or any(label not in labels for label in label_names):
            continue
        name = "engine_id" if "engine_id" in labels else "instance"
        key = (name, str(labels.get(name, "")), str(labels.get(LABEL_ENGINE, "0")))
        at, value = float(item["values"][-1][0]), float(item["values"][-1][1])
        newest, values = targets.get(key, (at, {}))
        if at < newest or not math.isfinite(value) or value < 0:
            continue
        if at > newest:
            values = {}
        series = Series(labels["__name__"], tuple(labels[label] for label in label_names))
        values[series] = values.get(series, 0.0) + value
        targets[key] = (at, values)
    return targets


def _address(url: str) -> str | None:
    """Return host:port as Prometheus writes `instance`; `None` if `url`, which an engine registered, is malformed."""
    try:
        parts = urlsplit(url)
        return f"{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 80)}"
    except ValueError:
        return None
