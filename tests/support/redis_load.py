"""What loads a Redis and a gateway while the server fails: an engine's record, a reader of changes, clients."""

import asyncio
import threading
from contextlib import suppress

from specpilot.policy.errors import StoreUnavailableError
from specpilot.policy.records import EngineRecord
from specpilot.policy.redis_store import RedisStore
from tests.support.gateway_client import Answer, Client, request


class Beating:
    """An engine that keeps its record, and a subscriber to the changes, each on a thread."""

    def __init__(self, url: str, record: EngineRecord) -> None:
        self.seen: list[str | None] = []
        self.ended = threading.Event()
        self._url = url
        self._record = record
        self._threads = [threading.Thread(target=self._beat), threading.Thread(target=self._follow)]
        for thread in self._threads:
            thread.start()

    def _beat(self) -> None:
        store = RedisStore(self._url)
        while not self.ended.wait(0.3):
            with suppress(StoreUnavailableError):
                store.heartbeat(self._record, 4.0)
        store.close()

    def _follow(self) -> None:
        store = RedisStore(self._url)
        while not self.ended.is_set():
            with suppress(StoreUnavailableError):
                for change in store.changes(0.2):
                    self.seen.append(change)
                    if self.ended.is_set():
                        break
        store.close()

    def end(self) -> None:
        self.ended.set()
        for thread in self._threads:
            thread.join()


async def ask_until(ended: threading.Event, port: int, answers: list[Answer]) -> None:
    async with await Client.connect(port) as client:
        while not ended.is_set():
            client.send(request())
            answers.append(await client.answer())
            await asyncio.sleep(0.01)
