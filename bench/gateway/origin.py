"""An engine with canned answers, so that only the program in front of it is timed.

`python -m specpilot.bench.gateway.origin PORT`

The prompt's first word sets the answer: `burst`, a stream of `EVENTS` events in one write; `paced`, one event every
`PACE_S`; anything else, a JSON answer.
"""

import asyncio
import json
import sys
from typing import cast

import httptools
import uvloop

EVENTS = 129
PACE_S = 0.02
_SHORT = 4096  # only short prompts ask for a stream
_MODELS = json.dumps({"object": "list", "data": [{"id": "canned", "object": "model"}]}).encode()
_ANSWER = json.dumps({
    "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "canned",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "word " * 60}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 12, "completion_tokens": 60, "total_tokens": 72},
}).encode()  # fmt: skip
_EVENT = b"data: " + json.dumps({
    "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "canned",
    "choices": [{"index": 0, "delta": {"content": " word"}, "logprobs": None, "finish_reason": None}],
}).encode() + b"\n\n"  # fmt: skip
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)


def _whole(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


_LAST = _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
_BURST = _STREAM_HEAD + _chunk(_EVENT) * EVENTS + _LAST


class _Connection(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own is one in all but name
        self._parser = httptools.HttpRequestParser(self)
        self._body: list[bytes] = []
        self._path = b""

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._body, self._path = [], b""

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        body = b"".join(self._body)
        prompt = body if len(body) < _SHORT else b""
        if self._path.startswith(b"/v1/models"):
            self._transport.write(_whole(_MODELS))
        elif b'"burst ' in prompt:
            self._transport.write(_BURST)
        elif b'"paced ' in prompt:
            self._transport.write(_STREAM_HEAD)
            self._pace(EVENTS)
        elif self._path.startswith(b"/v1/"):
            self._transport.write(_whole(_ANSWER))
        else:
            self._transport.write(_whole(b"{}"))

    def _pace(self, remaining: int) -> None:
        if self._transport.is_closing():
            return
        if remaining == 0:
            self._transport.write(_LAST)
            return
        self._transport.write(_chunk(_EVENT))
        asyncio.get_running_loop().call_later(PACE_S, self._pace, remaining - 1)


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(_Connection, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
