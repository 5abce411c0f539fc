"""Clients that send small chats to a gateway, cycling through the models, to measure the CPU of a request."""

import asyncio
import itertools
import json
import time
from dataclasses import dataclass
from typing import cast

import httptools
from typing_extensions import override

_OK = 200


@dataclass(slots=True)
class Counts:
    """Counts of answers, and the seconds."""

    answered: int = 0
    failed: int = 0
    seconds: float = 0.0


class _Client(asyncio.Protocol):
    """One connection: sends a request and reads the answer's status."""

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own is one in all but name
        self._answer: asyncio.Future[int] | None = None

    async def ask(self, request: bytes) -> int:
        """Return the status of the whole answer; 0 when the connection ends early."""
        self._parser = httptools.HttpResponseParser(self)
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def close(self) -> None:
        """End the connection."""
        self._transport.close()

    @override
    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    @override
    def connection_lost(self, _error: Exception | None) -> None:
        self._end(0)

    def on_message_complete(self) -> None:
        """The answer is whole."""
        self._end(self._parser.get_status_code())

    def _end(self, status: int) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(status)


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
        _, client = await asyncio.get_running_loop().create_connection(_Client, "127.0.0.1", port)
        while time.monotonic() - began < seconds:
            number = next(numbers)
            status = await client.ask(_request(f"model-{number % models}", number))
            counts.answered += status == _OK
            counts.failed += status != _OK
            if not status:
                break
        client.close()

    await asyncio.gather(*(run() for _ in range(clients)))
    counts.seconds = time.monotonic() - began
    return counts
