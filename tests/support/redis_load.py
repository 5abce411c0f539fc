"""What loads a Redis while it fails: a gateway with clients, an engine that keeps its record, a reader of changes."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from specpilot.policy.errors import StoreUnavailableError
from specpilot.policy.records import EngineRecord
from specpilot.policy.store import Store
from tests.support.gateway_client import Answer, Client, request
from tests.support.gateway_server import running_gateway

CLIENTS = 4


@dataclass
class Load:
    """What came of it so far: the clients' answers, and the changes that were announced."""

    url: str
    record: EngineRecord
    answers: list[Answer] = field(default_factory=list)
    seen: list[str | None] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def beat(self) -> None:
        store = Store(self.url)
        while not self.ended.wait(0.3):
            with suppress(StoreUnavailableError):
                store.heartbeat(self.record, 4.0)
        store.close()

    def follow(self) -> None:
        store = Store(self.url)
        while not self.ended.is_set():
            with suppress(StoreUnavailableError):
                for change in store.changes(0.2):
                    self.seen.append(change)
                    if self.ended.is_set():
                        break
        store.close()

    async def ask(self, port: int) -> None:
        async with await Client.connect(port) as client:
            while not self.ended.is_set():
                client.send(request())
                self.answers.append(await client.answer())
                await asyncio.sleep(0.01)


@asynccontextmanager
async def running_load(url: str, record: EngineRecord) -> AsyncIterator[Load]:
    """Load the Redis at `url` until the end of the context."""
    load = Load(url, record)
    threads = [asyncio.create_task(asyncio.to_thread(work)) for work in (load.beat, load.follow)]
    async with running_gateway("--redis-url", url, "--redis-poll-s", "0.3") as gateway:
        asking = [asyncio.create_task(load.ask(gateway.port)) for _ in range(CLIENTS)]
        try:
            yield load
        finally:
            load.ended.set()
            await asyncio.gather(*threads, *asking)
