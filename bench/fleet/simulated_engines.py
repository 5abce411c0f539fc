"""`python -m specpilot.bench.fleet.simulated_engines PORT MODELS`: the HTTP interface of many engines in one process.

Engine N is at `/eN` on the port and serves the model `model-(N mod MODELS)`. Its `/metrics` has the counters of an
engine that verifies K = 3 of 7 in four classes and every band; they grow at constant rates from the start of the
process. It also answers `/v1/models`, and every POST with a small completion at once. It serves to measure the cost of
a fleet for its gateways, controllers and Redis, not speculation.
"""

import asyncio
import sys
import time
from functools import lru_cache
from typing import cast

import uvloop
from typing_extensions import override

from specpilot.policy import engine_metrics as names
from specpilot.policy.bands import BANDS

CLASSES = ("default", "chat", "code", "json")
K, K_MAX = 3, 7
STEPS_A_SECOND = 50.0
RUNNING = 16
PAGE_EVERY_S = 0.25
KINDS = {"decode": 0.85, "prefill": 0.1, names.CATCH_UP: 0.05}
"""Shares of the steps."""
STEP_S = (0.006, 0.00006, 0.0000015)
"""Seconds of a step: fixed, for each verified token, and for each 32 prefilled tokens."""

_COMPLETION = (
    b'{"id":"s","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant",'
    b'"content":"x"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}'
)


def model_of(number: int, models: int) -> str:
    """Return the model of engine `number` in a fleet with so many models."""
    return f"model-{number % models}"


def page(model: str, seconds: float) -> str:
    """Return an engine's metrics after it ran for `seconds`."""
    lines: list[str] = []

    def line(name: str, value: float, **labels: object) -> None:
        words = ",".join(f'{label}="{text}"' for label, text in {names.LABEL_MODEL: model, **labels}.items())
        lines.append(f"{name}{{{words}}} {value:.6g}")

    steps = STEPS_A_SECOND * seconds
    drafts = steps * RUNNING / BANDS
    for band in range(BANDS):
        a = (band + 0.5) / BANDS
        for position in range(1, K_MAX + 1):
            share = a ** (position - 1) * (1.0 if position <= K else 0.01)  # beyond K only probes
            line(names.TRIALS, drafts * share, band=band, position=position)
            line(names.ACCEPTS, drafts * share * a, band=band, position=position)
        for traffic_class in CLASSES:
            here = {"traffic_class": traffic_class, "band": band}
            line(names.DRAFTS, drafts / len(CLASSES), **here, k=K)
            line(names.DRAFTS, drafts / len(CLASSES) * 0.01, **here, k=K_MAX)
            line(names.DECODE_TOKENS, drafts / len(CLASSES) * (1 + a + a**2 + a**3), **here)
            line(names.COLD_DECODES, drafts / len(CLASSES) * 0.01, **here)
    for traffic_class in CLASSES:
        line(names.PROBES, drafts * 0.01, traffic_class=traffic_class)
        line(names.RUNNING_DECODES, RUNNING / len(CLASSES), traffic_class=traffic_class)
    line(names.STATIC_BREAKS_SLO, 0)
    fixed_s, token_s, _ = STEP_S
    verified = RUNNING * (1 + K)
    for kind, share in KINDS.items():
        count, labels = share * steps, {names.LABEL_KIND: kind}
        line(names.STEPS, count, **labels)
        line(names.STEP_SECONDS, count * (fixed_s + token_s * verified), **labels)
        line(names.STEP_DECODES, count * RUNNING, **labels)
    line(names.DECODE_SECONDS, (1 - KINDS[names.CATCH_UP]) * steps * (fixed_s + token_s * verified))
    return "\n".join(lines) + "\n"


@lru_cache(maxsize=4096)
def _page(model: str, quantum: int) -> bytes:
    return _reply(page(model, 60.0 + quantum * PAGE_EVERY_S).encode(), b"text/plain; version=0.0.4")


def _reply(body: bytes, kind: bytes = b"application/json") -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (kind, len(body), body)


class _Connection(asyncio.Protocol):
    def __init__(self, models: int, began: float) -> None:
        self._models = models
        self._began = began
        self._buffer = b""

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own is one in all but name

    @override
    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end]
            _, mark, rest = head.lower().partition(b"\r\ncontent-length:")
            length = int(rest.partition(b"\r\n")[0]) if mark else 0
            if len(self._buffer) < end + 4 + length:
                return
            self._buffer = self._buffer[end + 4 + length :]
            self._answer(head.partition(b"\r\n")[0].decode())

    def _answer(self, line: str) -> None:
        method, target, _ = line.split(" ")
        engine, _, path = target.partition("?")[0].removeprefix("/e").partition("/")
        model = model_of(int(engine), self._models) if engine.isdecimal() else "model-0"
        if method == "POST":
            self._transport.write(_reply(_COMPLETION))
        elif path == "metrics":
            self._transport.write(_page(model, int((time.monotonic() - self._began) / PAGE_EVERY_S)))
        else:
            self._transport.write(_reply(b'{"object":"list","data":[{"id":"%b","object":"model"}]}' % model.encode()))


async def _serve(port: int, models: int) -> None:
    began = time.monotonic()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(models, began), "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1]), int(sys.argv[2])))
