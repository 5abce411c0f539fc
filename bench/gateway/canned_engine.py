"""An engine with canned answers, so that only the program in front of it is measured.

`python -m specpilot.bench.gateway.canned_engine PORT`

To a request with the header `x-canned` every part of the answer has its `x-request-id`, and the events of a stream are
numbered, so that a client detects lost, doubled and foreign parts. The header is a JSON object that sets the answer:
`events` of a stream (none: one whole answer), `pause_s` between them, `padding` in bytes of each, `wait_s` before the
first byte, `status` for an error, and `breaks`, the number of events before the connection closes (0: no answer).
`GET /slots` returns the number of such requests that it holds: like a real engine it holds a slot for each until the
answer ends or the client closes the connection.

Any other request is answered at once with the same bytes. The prompt's first word sets them: `burst`, a stream of
`EVENTS` events in one write; `paced`, one event every `PACE_S`; anything else, a JSON answer.
"""

import asyncio
import json
import sys
from typing import Any, cast

import httptools
import uvloop
from typing_extensions import override

MODEL = "canned"
EVENTS = 129
PACE_S = 0.02
_SHORT = 4096  # only short prompts ask for a stream
_MODELS = json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model"}]}).encode()
_ANSWER = json.dumps({
    "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": MODEL,
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "word " * 60}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 12, "completion_tokens": 60, "total_tokens": 72},
}).encode()  # fmt: skip
_EVENT = b"data: " + json.dumps({
    "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL,
    "choices": [{"index": 0, "delta": {"content": " word"}, "logprobs": None, "finish_reason": None}],
}).encode() + b"\n\n"  # fmt: skip
_REASONS = {
    200: b"OK",
    400: b"Bad Request",
    401: b"Unauthorized",
    500: b"Internal Server Error",
    503: b"Service Unavailable",
}
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


_LAST = _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
_BURST = _STREAM_HEAD + _chunk(_EVENT) * EVENTS + _LAST


class CannedEngine:
    """The state that all connections share: the held slots."""

    def __init__(self) -> None:
        self.held: set[CannedConnection] = set()
        self.requests = 0


class CannedConnection(asyncio.Protocol):
    """One connection of a client; it answers requests one after the other."""

    def __init__(self, engine: CannedEngine) -> None:
        self._engine = engine
        self._answering: asyncio.Task[None] | None = None

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own is one in all but name
        self._parser = httptools.HttpRequestParser(self)

    @override
    def connection_lost(self, _error: Exception | None) -> None:
        self._engine.held.discard(self)
        if self._answering is not None:
            self._answering.cancel()

    @override
    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        """A request begins."""
        self._path = self._body = b""
        self._headers: dict[bytes, bytes] = {}

    def on_url(self, url: bytes) -> None:
        """Part of the request's target arrived."""
        self._path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header arrived."""
        self._headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        """Part of the request's body arrived."""
        if len(self._body) < _SHORT:
            self._body += body

    def on_message_complete(self) -> None:
        """The request is whole."""
        engine = self._engine
        if self._path.startswith(b"/v1/models"):
            self._write(200, _MODELS)
        elif self._path == b"/slots":
            self._write(200, json.dumps({"held": len(engine.held), "requests": engine.requests}).encode())
        elif b"x-canned" in self._headers:
            engine.held.add(self)
            engine.requests += 1
            canned = json.loads(self._headers[b"x-canned"])
            number = self._headers.get(b"x-request-id", b"").decode()
            self._answering = asyncio.get_running_loop().create_task(self._answer(number, canned))
        else:
            self._answer_at_once(self._body if len(self._body) < _SHORT else b"")

    def _answer_at_once(self, prompt: bytes) -> None:
        if b'"burst ' in prompt:
            self._transport.write(_BURST)
        elif b'"paced ' in prompt:
            self._transport.write(_STREAM_HEAD)
            self._pace(EVENTS)
        else:
            self._write(200, _ANSWER if self._path.startswith(b"/v1/") else b"{}")

    def _pace(self, remaining: int) -> None:
        if self._transport.is_closing():
            return
        if remaining == 0:
            self._transport.write(_LAST)
            return
        self._transport.write(_chunk(_EVENT))
        asyncio.get_running_loop().call_later(PACE_S, self._pace, remaining - 1)

    def _write(self, status: int, body: bytes) -> None:
        head = b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self._transport.write(head % (status, _REASONS[status], len(body)) + body)

    async def _answer(self, number: str, canned: dict[str, Any]) -> None:
        await asyncio.sleep(canned.get("wait_s", 0.0))
        events, breaks_after = canned.get("events", 0), canned.get("breaks")
        if breaks_after == 0:
            self._transport.close()
        elif canned.get("status", 200) != 200:  # noqa: PLR2004 - HTTP's own
            error = {"message": "canned", "type": "api_error", "param": None, "code": f"canned_{canned['status']}"}
            self._over(canned["status"], json.dumps({"error": error}).encode())
        elif events:
            await self._stream(number, events, canned, breaks_after)
        else:
            message = {"role": "assistant", "content": number}
            usage = {"prompt_tokens": 12, "completion_tokens": 60, "total_tokens": 72}
            choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
            self._over(200, json.dumps({"id": number, "choices": choices, "usage": usage}).encode())

    async def _stream(self, number: str, events: int, canned: dict[str, Any], breaks_after: int | None) -> None:
        pause_s, padding = canned.get("pause_s", 0.0), "x" * canned.get("padding", 0)
        self._transport.write(_STREAM_HEAD)
        for at in range(events):
            if at == breaks_after:
                self._transport.close()
                return
            choices = [{"index": 0, "delta": {"content": str(at)}, "finish_reason": None}]
            event = {"id": number, "choices": choices, "padding": padding}
            self._transport.write(_chunk(b"data: " + json.dumps(event).encode() + b"\n\n"))
            if pause_s:
                await asyncio.sleep(pause_s)
        self._release()
        self._transport.write(_LAST)

    def _over(self, status: int, body: bytes) -> None:
        self._release()
        self._write(status, body)

    def _release(self) -> None:
        """Free the slot before the last byte is sent, as the client may ask for the count once it has this byte."""
        self._engine.held.discard(self)


async def _serve(port: int) -> None:
    engine = CannedEngine()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: CannedConnection(engine), "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
