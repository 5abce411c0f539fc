"""Clients that send small chats to a gateway, cycling through the models, to measure the CPU of a request."""

import asyncio
import itertools
import json
import time
from dataclasses import dataclass

from specpilot.bench.load.asker import Asker


@dataclass(slots=True)
class Counts:
    """Counts of answers, and the seconds."""

    answered: int = 0
    failed: int = 0
    seconds: float = 0.0


def _request(model: str, number: int) -> bytes:
    body = {"model": model, "messages": [{"role": "user", "content": f"Hello {number}"}], "max_tokens": 16}
    text = json.dumps(body).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
    return head + b"content-length: %d\r\n\r\n" % len(text) + text


async def calls_for(port: int, models: int, clients: int, seconds: float) -> Counts:
    """Keep `clients` requests in flight for `seconds`, cycling through the models from `model-0`; return the counts."""
    counts, numbers = Counts(), itertools.count()
    began = time.monotonic()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(Asker, "127.0.0.1", port)
        while time.monotonic() - began < seconds:
            number = next(numbers)
            try:
                await client.ask(_request(f"model-{number % models}", number))
                counts.answered += 1
            except ConnectionError:
                counts.failed += 1
                try:
                    _, client = await loop.create_connection(Asker, "127.0.0.1", port)
                except OSError:
                    return  # the gateway is gone; what was counted stays
        client.close()

    await asyncio.gather(*(run() for _ in range(clients)))
    counts.seconds = time.monotonic() - began
    return counts
