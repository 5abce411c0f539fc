"""One request to a gateway in front of `bench.gateway.canned_engine`, and a verdict on the answer.

Verdicts: `ok`; `left`, the client closed the connection as planned; `refused`, an error before the first byte;
`broken`, one error event that ends a stream; `lost`, no answer, or a truncated one; `wrong`, a whole answer that is not
the expected one. When an engine breaks off within a body that is not a stream, the client can see only a truncation:
`lost`, too.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import httptools
from typing_extensions import override

ANSWERED_WITHIN_S = 120.0
LEAVES_AFTER_S = 0.05
LEAVES_AFTER_EVENTS = 3
STALLS_S = 1.0
_DONE = b"data: [DONE]"
_FIRST_ERROR_STATUS = 400


class Verdict(NamedTuple):
    """The verdict on a request; `code` is the error's, or describes the fault."""

    outcome: str
    code: str = ""

    def __str__(self) -> str:
        return f"{self.outcome} {self.code}" if self.code else self.outcome


OK, LEFT = Verdict("ok"), Verdict("left")


@dataclass(frozen=True, slots=True)
class Call:
    """A request. `events` of its stream, 0 for a whole answer; a whole answer must contain `marker`.

    `leaves` is the phase in which the client closes the connection: in the `head`, in the `body`, in the `wait` for the
    first byte, in the `stream`; empty: it stays. One that `stalls` reads nothing for `STALLS_S` after the first byte.
    `expected` are the right verdicts.
    """

    kind: str
    head: bytes
    body: bytes
    number: str
    events: int = 0
    leaves: str = ""
    stalls: bool = False
    marker: bytes = b""
    expected: frozenset[Verdict] = field(default=frozenset((OK,)))


def post(  # noqa: PLR0913, PLR0917 - a request is that much
    kind: str, number: str, path: str, body: bytes, canned: dict[str, Any], key: str | None = None, **more: Any
) -> Call:
    """Return a relayed request; `canned` sets the engine's answer."""
    authorization = b"" if key is None else b"authorization: Bearer %b\r\n" % key.encode()
    head = b"POST %b HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n%b" % (path.encode(), authorization)
    head += b"x-request-id: %b\r\nx-canned: %b\r\n" % (number.encode(), json.dumps(canned).encode())
    more = {"marker": number.encode(), "events": canned.get("events", 0)} | more
    return Call(kind, head + b"content-length: %d\r\n\r\n" % len(body), body, number, **more)


def judge(call: Call, status: int, body: bytes, *, is_whole: bool) -> Verdict:
    """Return the verdict on an answer of `status` (0: none), of whose body `body` arrived."""
    if not status:
        return Verdict("lost", "no answer")
    if status >= _FIRST_ERROR_STATUS:
        code = _code_of(body) if is_whole else None
        return Verdict("refused", code) if code else Verdict("lost" if not is_whole else "wrong", f"status {status}")
    if call.events:
        return _judge_stream(call, body, is_whole=is_whole)
    if not is_whole:
        return Verdict("lost", "a body cut off")
    return OK if call.marker in body else Verdict("wrong", f"not its own answer: {body[:80]!r}")


def _judge_stream(call: Call, body: bytes, *, is_whole: bool) -> Verdict:
    *frames, rest = body.split(b"\n\n")
    if not is_whole or rest:
        return Verdict("lost", "a stream cut off")
    last = frames.pop() if frames else b""
    expected = [(call.number, str(at)) for at in range(call.events)]
    events = [_event_of(frame) for frame in frames]
    if last == _DONE:
        return OK if events == expected else Verdict("wrong", f"{len(events)} of {len(expected)} events, or others")
    code = _code_of(last.rpartition(b"data: ")[2])
    if code is None or events != expected[: len(events)]:
        return Verdict("wrong", f"a stream that ends with {last[-80:]!r}")
    return Verdict("broken", code)


def _event_of(frame: bytes) -> tuple[str, str] | None:
    try:
        event = json.loads(frame.removeprefix(b"data: "))
        return event["id"], event["choices"][0]["delta"]["content"]
    except (ValueError, KeyError):
        return None


def _code_of(body: bytes) -> str | None:
    """Return the code of an error in OpenAI's envelope; `None` if it is none."""
    try:
        return str(json.loads(body)["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return None


class Caller(asyncio.Protocol):
    """A client's connection: sends one request at a time and reads the answers.

    `times` are those at which the last request was sent, and at which the parts of its answer's body arrived.
    """

    times: list[float]

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own is one in all but name
        self.is_closed = False
        self._over: asyncio.Future[None] | None = None
        self._leaves_after: int | None = None
        self._stalls = False

    async def ask(self, call: Call) -> Verdict:
        """Send the request and return the verdict; the connection may be closed afterwards."""
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._is_whole, self._status = False, 0
        self._over = asyncio.get_running_loop().create_future()
        self._leaves_after = LEAVES_AFTER_EVENTS if call.leaves == "stream" else None
        self._stalls = call.stalls
        self.times = [time.perf_counter()]
        self._transport.writelines(self._parts(call))
        try:
            async with asyncio.timeout(LEAVES_AFTER_S if call.leaves not in {"", "stream"} else ANSWERED_WITHIN_S):
                await self._over
        except TimeoutError:
            self.close()
            return LEFT if call.leaves else Verdict("lost", f"no whole answer within {ANSWERED_WITHIN_S:.0f} s")
        if self._leaves_after == 0:
            return LEFT
        return judge(call, self._status, b"".join(self._body), is_whole=self._is_whole)

    @staticmethod
    def _parts(call: Call) -> Sequence[bytes]:
        if call.leaves == "head":
            return (call.head[: len(call.head) // 2],)
        return (call.head, call.body[: len(call.body) // 2] if call.leaves == "body" else call.body)

    def close(self) -> None:
        """Leave."""
        self.is_closed = True
        self._transport.abort()

    @override
    def data_received(self, data: bytes) -> None:
        before = len(self._body)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.close()
        if self._is_whole or len(self._body) > before:
            self.times.append(time.perf_counter())

    @override
    def connection_lost(self, _error: Exception | None) -> None:
        self.is_closed = True
        self._end()

    def on_body(self, body: bytes) -> None:
        """Part of the answer's body arrived."""
        self._status = self._parser.get_status_code()
        self._body.append(body)
        if self._stalls:
            self._stalls = False
            self._transport.pause_reading()
            asyncio.get_running_loop().call_later(STALLS_S, self._read_on)
        if self._leaves_after:
            self._leaves_after = max(0, self._leaves_after - body.count(b"data: "))
            if self._leaves_after == 0:
                self.close()

    def on_message_complete(self) -> None:
        """The answer is whole."""
        self._status = self._parser.get_status_code()
        self._is_whole = True
        if not self._parser.should_keep_alive():
            self.close()
        self._end()

    def _read_on(self) -> None:
        if not self.is_closed:
            self._transport.resume_reading()

    def _end(self) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_result(None)


async def connect(port: int) -> Caller:
    """Return a new connection to a gateway on this machine."""
    _, caller = await asyncio.get_running_loop().create_connection(Caller, "127.0.0.1", port)
    return caller
