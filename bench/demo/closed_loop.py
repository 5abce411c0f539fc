"""A closed-loop load: a set number of requests of each kind in flight.

Replies are not streamed and have a set length (`ignore_eos`), so that every arm of a comparison delivers the same text
and the generator's own work stays small beside the engine's. Lengths differ from request to request, and are the same
in every run: replies of one length would all end together, and the concurrency would swing.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import aiohttp

from specpilot.bench.demo.trace import Kind
from specpilot.policy.http_client import is_on_this_machine

REQUEST_TIMEOUT_S = 120.0
PAUSE_AFTER_FAILURE_S = 0.2


class Load:
    """Keeps a phase's demand in flight. `requests` counts those sent, `failed` those in error, by its name."""

    def __init__(self, base_url: str, model: str, prompts: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S),
            trust_env=not is_on_this_machine(base_url),
            raise_for_status=True,
        )
        self._url = f"{base_url}/chat/completions"
        self._model = model
        self._prompts = prompts
        self._turn = count()
        self._workers: dict[Kind, list[asyncio.Task[None]]] = {}
        self.requests = 0
        self.failed: Counter[str] = Counter()

    async def shift_to(self, demand: Mapping[Kind, int]) -> None:
        """Start and stop workers until so many requests of each kind are in flight. Stopped workers drop theirs."""
        ended = []
        for kind in {**self._workers, **demand}:
            workers, target = self._workers.setdefault(kind, []), demand.get(kind, 0)
            while len(workers) > target:
                worker = workers.pop()
                worker.cancel()
                ended.append(worker)
            while len(workers) < target:
                workers.append(asyncio.create_task(self._work(kind)))
        await asyncio.gather(*ended, return_exceptions=True)

    async def close(self) -> None:
        """Stop every worker, for good."""
        await self.shift_to({})
        await self._session.close()

    async def _work(self, kind: Kind) -> None:
        prompts = self._prompts[kind.prompts]
        while True:
            turn = next(self._turn)
            self.requests += 1
            body = {
                "model": self._model,
                "messages": prompts[turn % len(prompts)]["messages"],
                "max_tokens": random.Random(turn).randint(*kind.reply_tokens),  # noqa: S311 - a load, no secret
                "temperature": kind.temperature,
                "seed": turn,
                "ignore_eos": True,
            }
            try:
                async with self._session.post(
                    self._url, json=body, headers={"X-Traffic-Class": kind.traffic_class}
                ) as reply:
                    await reply.read()
            except (aiohttp.ClientError, TimeoutError) as error:
                self.failed[type(error).__name__] += 1
                await asyncio.sleep(PAUSE_AFTER_FAILURE_S)
