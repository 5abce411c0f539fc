"""Sums of the engines' counters that never decrease, even if engines restart, leave or return.

The sums count by how much each series of an engine has grown since its last reading.

1. The first reading of an engine adds nothing, so an engine that joins with a million drafts does not add them at once.
   Its series appear, with 0 if no other engine has them.
2. A series that has decreased was restarted: its whole value is new.
3. Counts between an engine's last reading and its restart are lost.

The engines are read when the sums are requested and the last readings are older than `max_age_s`, and at no other time.
So an idle endpoint costs nothing, and a client gets current numbers at both ends of its measurement. An engine that
cannot be read in time keeps its last reading.

Engines are identified by URL, because workers may have different names for one engine for a moment.
"""

import asyncio
import fcntl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import orjson
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from specpilot.gateway.telemetry.worker_files import replace_file
from specpilot.gateway.wire.spec_decode import HELP, PER_POSITION, PREFIX, Counts, Reading, parts_of

ENGINES_REMEMBERED: Final = 1024
"""Engines, also departed ones, whose last reading is kept. The one read least recently is dropped first."""


@dataclass(slots=True)
class Account:
    """The sums, the time of their last update, and the last reading of each engine with its time."""

    totals: Counts = field(default_factory=dict)
    updated_at: float | None = None
    last: dict[str, Counts] = field(default_factory=dict)
    read_at: dict[str, float] = field(default_factory=dict)

    def add(self, readings: Sequence[Reading], now: float) -> None:
        """Update the sums.

        A reading that began before the last reading of its engine was answered is skipped: it may be the older of the
        two and would look like a restart. The next reading includes its counts.
        """
        for reading in readings:
            if reading.began_at < self.read_at.get(reading.url, reading.began_at):
                continue
            before = self.last.pop(reading.url, None)
            for key, count in reading.counts.items():
                start = count if before is None else before.get(key, 0.0)  # 1
                grown = count if count < start else count - start  # 2
                self.totals[key] = self.totals.get(key, 0.0) + grown
            self.last[reading.url] = reading.counts
            self.read_at[reading.url] = reading.ended_at
        for url in [*self.last][: max(0, len(self.last) - ENGINES_REMEMBERED)]:
            del self.last[url], self.read_at[url]
        self.updated_at = now


class _Collected(Collector):
    def __init__(self, totals: Counts) -> None:
        self._totals = totals

    def collect(self) -> Iterable[Metric]:
        families: dict[str, CounterMetricFamily] = {}
        for key, count in self._totals.items():
            name, position, model = parts_of(key)
            has_position = name == PER_POSITION
            family = families.get(name)
            if family is None:
                labels = ("model_name", "position") if has_position else ("model_name",)
                family = families[name] = CounterMetricFamily(PREFIX + name, HELP[name], labels=labels)
            family.add_metric((model, position) if has_position else (model,), count)
        return families.values()


def exposition(totals: Counts) -> bytes:
    """Return `totals` as Prometheus' text, under vLLM's names and labels, without the label `engine`."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(totals))
    return generate_latest(registry)


class Keeper(Protocol):
    """Stores the account. Its methods may block, and raise `OSError`."""

    def load(self) -> Account:
        """Return the account."""

    def add(self, readings: Sequence[Reading], now: float) -> Account:
        """Update the account and return it."""


class OwnAccount:
    """The account of a gateway of one process."""

    def __init__(self) -> None:
        self._account = Account()

    def load(self) -> Account:
        """Return the account."""
        return self._account

    def add(self, readings: Sequence[Reading], now: float) -> Account:
        """Update the account and return it."""
        self._account.add(readings, now)
        return self._account


class SharedAccount:
    """The account of several workers: one file in their folder, changed under a lock."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "engine_counters.json"
        self._lock = folder / "engine_counters.lock"

    def load(self) -> Account:
        """Return the account."""
        try:
            return Account(**orjson.loads(self._path.read_bytes()))
        except FileNotFoundError:
            return Account()

    def add(self, readings: Sequence[Reading], now: float) -> Account:
        """Update the account and return it. Raises `OSError` when it cannot be written."""
        with self._lock.open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel releases it whenever the worker ends
            account = self.load()
            account.add(readings, now)
            replace_file(self._path, account)
        return account


class EngineCounters:
    """The sums, read from the engines on demand. `ask` returns readings of the engines that can be read now."""

    def __init__(
        self,
        ask: Callable[[], Awaitable[Sequence[Reading]]],
        keeper: Keeper,
        monotonic: Callable[[], float],
        max_age_s: float,
    ) -> None:
        self._ask = ask
        self._keeper = keeper
        self._monotonic = monotonic
        self._max_age_s = max_age_s
        self._reading = asyncio.Lock()

    async def read(self) -> Counts:
        """Return the sums, at most `max_age_s` old. Raises `OSError` when the workers' account cannot be kept."""
        async with self._reading:
            account = await asyncio.to_thread(self._keeper.load)
            if account.updated_at is None or self._monotonic() - account.updated_at >= self._max_age_s:
                readings = await self._ask()
                account = await asyncio.to_thread(self._keeper.add, readings, self._monotonic())
            return dict(account.totals)  # a copy: the next reading changes them on a thread
