"""A closed-loop load: a set number of requests of each class in flight, through the official `openai` client.

Replies are not streamed and have a set length (`ignore_eos`), so that every arm of a comparison delivers the same text
and the generator's own work stays small beside the engine's. Lengths differ from request to request, and are the same
in every run: replies of one length would all end together, and the concurrency would swing.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

from openai import APIError, AsyncOpenAI

from specpilot.bench.load.trace import Kind, LoadPhase


class Load:
    """Keeps a phase's demand in flight. `failed` counts requests that ended in an error; `tokens` counts received ones.

    With `names_classes` requests name their class; without it all are of class `default`.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        prompts: Mapping[str, Sequence[Mapping[str, Any]]],
        *,
        names_classes: bool = True,
    ) -> None:
        self._client = AsyncOpenAI(base_url=base_url, api_key="bench", max_retries=0, timeout=120.0)
        self._model = model
        self._prompts = prompts
        self._names_classes = names_classes
        self._turn = count()
        self._workers: dict[Kind, list[asyncio.Task[None]]] = {}
        self.requests = 0
        self.tokens = 0
        self.failed: Counter[str] = Counter()

    async def shift_to(self, phase: LoadPhase) -> None:
        """Start and stop workers until the demand is the phase's. Stopped workers drop their request."""
        ended = []
        streams = phase.streams
        for kind in {**self._workers, **streams}:
            workers = self._workers.setdefault(kind, [])
            target = streams.get(kind, 0)
            while len(workers) > target:
                worker = workers.pop()
                worker.cancel()
                ended.append(worker)
            while len(workers) < target:
                workers.append(asyncio.create_task(self._work(kind)))
        for worker in ended:
            with suppress(asyncio.CancelledError):
                await worker

    async def pause(self) -> None:
        """Stop every worker; they drop their request."""
        stopped = [worker for workers in self._workers.values() for worker in workers]
        self._workers.clear()
        for worker in stopped:
            worker.cancel()
        for worker in stopped:
            with suppress(asyncio.CancelledError):
                await worker

    async def close(self) -> None:
        """Stop every worker, for good."""
        await self.pause()
        await self._client.close()

    async def _work(self, kind: Kind) -> None:
        prompts = self._prompts[kind.prompts]
        while True:
            turn = next(self._turn)
            self.requests += 1
            try:
                reply = await self._client.chat.completions.create(
                    model=self._model,
                    messages=prompts[turn % len(prompts)]["messages"],
                    max_tokens=random.Random(turn).randint(*kind.reply_tokens),  # noqa: S311 - a load, no secret
                    temperature=kind.temperature,
                    seed=turn,
                    extra_headers={"X-Traffic-Class": kind.traffic_class} if self._names_classes else None,
                    extra_body={"ignore_eos": True},
                )
                self.tokens += reply.usage.completion_tokens if reply.usage else 0
            except APIError as error:
                self.failed[type(error).__name__] += 1
                await asyncio.sleep(0.2)
