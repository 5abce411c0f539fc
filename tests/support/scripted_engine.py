"""An engine that plays byte scripts: whatever an OpenAI-compatible server might do on the wire, and notes what it saw.

A script is a sequence of steps: bytes are sent, numbers are seconds to wait, events are waited for, `CLOSE` closes
cleanly, `RESET` resets the connection, `HANG` waits until the peer has gone. A connection stays open after a script
without `CLOSE` or `RESET`.
"""

import asyncio
import gzip
import json
import socket
import ssl
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Self, cast

from tests.support.patience import PATIENCE_S
from tests.support.tcp_server import end


class Act(Enum):
    CLOSE = "close"
    RESET = "reset"
    HANG = "hang"


CLOSE, RESET, HANG = Act.CLOSE, Act.RESET, Act.HANG
Step = bytes | float | Act | asyncio.Event
Script = Sequence[Step]


@dataclass
class Seen:
    """One request as the engine got it."""

    line: bytes
    headers: dict[str, str]
    body: bytes
    connection: int
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def path(self) -> str:
        return self.line.split(b" ")[1].decode()

    async def until_closed(self) -> None:
        """Wait until its connection is closed."""
        async with asyncio.timeout(PATIENCE_S):
            await self.closed.wait()


def reply(body: bytes, status: str = "200 OK", content_type: str = "application/json", extra: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n{extra}\r\n"
    return head.encode() + body


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


def event(text: str, *, finish: str | None = None, model: str = "tiny") -> bytes:
    delta = {"content": text} if finish is None else {}
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    plain = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": model, "choices": [choice]}
    return b"data: " + json.dumps(plain, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def usage_event(output_tokens: int, acceptance_length: float | None = None, model: str = "tiny") -> bytes:
    usage = {"prompt_tokens": 3, "completion_tokens": output_tokens, "total_tokens": 3 + output_tokens}
    plain: dict[str, Any] = {
        "id": "c1", "object": "chat.completion.chunk", "created": 1, "model": model, "choices": [], "usage": usage,
    }  # fmt: skip
    if acceptance_length is not None:
        plain["metrics"] = {"speculative_decoding": speculation(acceptance_length)}
    return b"data: " + json.dumps(plain, separators=(",", ":")).encode() + b"\n\n"


def speculation(acceptance_length: float) -> dict[str, Any]:
    return {
        "mean_acceptance_length": acceptance_length,
        "draft_acceptance_rate": 0.5,
        "acceptance_histogram": [1, 2, 3],
        "num_spec_steps": 6,
        "num_accepted_draft_tokens": 8,
        "num_draft_tokens": 16,
        "num_spec_tokens": 2,
    }


DONE = b"data: [DONE]\n\n"


def stream(*texts: str) -> list[Step]:
    """A well-behaved chat stream, an event a chunk."""
    frames = [event(text) for text in texts] + [event("", finish="stop"), DONE]
    return [SSE_HEAD, *(chunk(frame) for frame in frames), LAST_CHUNK]


def completion(
    text: str = "Hello!", output_tokens: int = 2, acceptance_length: float | None = None, model: str = "tiny"
) -> bytes:
    plain: dict[str, Any] = {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": output_tokens, "total_tokens": 3 + output_tokens},
    }
    if acceptance_length is not None:
        plain["metrics"] = {"speculative_decoding": speculation(acceptance_length)}
    return json.dumps(plain, separators=(",", ":")).encode()


class ScriptedEngine:
    """A server on a free port. `script` is played for every request; `scripts` first, one each, in order."""

    def __init__(
        self, models: Sequence[str] = ("tiny",), host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
    ) -> None:
        self.tls = tls
        self.models = list(models)
        self.card: dict[str, Any] = {}  # what else it says of each
        self.host = host
        self.script: Script = [reply(completion())]
        self.scripts: list[Script] = []
        self.choose: Callable[[Seen], Script] | None = None
        self.seen: list[Seen] = []
        self.connections = 0
        self.open: set[_Connection] = set()
        self.model_calls = 0
        self.model_coding = ""  # the coding of its list of models: none, gzip, or another one by name only
        self.port = 0
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        scheme = "http" if self.tls is None else "https"
        return f"{scheme}://{self.host}:{self.port}"

    async def start(self) -> "ScriptedEngine":
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), self.host, self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Stop serving, and end every connection."""
        server, self._server = self._server, None
        if server is not None:
            await end(server)

    def next_script(self, seen: Seen) -> Script:
        if self.scripts:
            return self.scripts.pop(0)
        return self.script if self.choose is None else self.choose(seen)

    @property
    def is_silent(self) -> bool:
        """Whether it has said all that it has to say now."""
        return all(connection._task is None for connection in self.open)

    async def wait_seen(self, count: int, timeout_s: float = PATIENCE_S) -> None:
        async with asyncio.timeout(timeout_s):
            while len(self.seen) < count:  # noqa: ASYNC110 - simpler than an event for each count
                await asyncio.sleep(0.002)


class _Connection(asyncio.Protocol):
    def __init__(self, engine: ScriptedEngine) -> None:
        self._engine = engine
        self._buffer = bytearray()
        self._needed = 0
        self._current: Seen | None = None
        self._task: asyncio.Task[None] | None = None
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._engine.connections += 1
        self._engine.open.add(self)
        self._number = self._engine.connections

    def connection_lost(self, exc: Exception | None) -> None:
        self._engine.open.discard(self)
        if self._current is not None:
            self._current.closed.set()
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._can_write.set()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) >= self._needed:
            self._next()

    def _next(self) -> None:
        if self._task is not None:
            return
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        line, *fields = bytes(self._buffer[:end]).split(b"\r\n")
        headers = {
            name.decode("latin-1").lower(): value.strip().decode("latin-1")
            for name, _, value in (item.partition(b":") for item in fields)
        }
        length = int(headers.get("content-length", "0"))
        self._needed = end + 4 + length
        if len(self._buffer) < self._needed:
            return
        body = bytes(self._buffer[end + 4 : self._needed])
        del self._buffer[: self._needed]
        self._needed = 0
        seen = Seen(line, headers, body, self._number)
        if line.startswith(b"GET /v1/models "):
            self._engine.model_calls += 1
            cards = [
                {"id": name, "object": "model", "created": 1, "owned_by": "test", **self._engine.card}
                for name in self._engine.models
            ]
            body, coding = json.dumps({"object": "list", "data": cards}).encode(), self._engine.model_coding
            extra = f"content-encoding: {coding}\r\n" if coding else ""
            self._transport.write(reply(gzip.compress(body) if coding == "gzip" else body, extra=extra))
            self._next()
            return
        self._engine.seen.append(seen)
        self._current = seen
        self._task = asyncio.get_running_loop().create_task(self._play(seen))

    async def _play(self, seen: Seen) -> None:
        for step in self._engine.next_script(seen):
            if isinstance(step, bytes):
                self._transport.write(step)
                await self._can_write.wait()
            elif step is CLOSE:
                self._transport.close()
                return
            elif step is RESET:
                found: socket.socket = self._transport.get_extra_info("socket")
                found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self._transport.abort()
                return
            elif step is HANG:
                await seen.closed.wait()
                return
            elif isinstance(step, asyncio.Event):
                await step.wait()
            elif isinstance(step, (int, float)):
                await asyncio.sleep(step)
        self._task = None
        self._next()


def requests_of(*engines: ScriptedEngine) -> int:
    """How many requests the engines got, together."""
    return sum(len(engine.seen) for engine in engines)
