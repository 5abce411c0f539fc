"""Asks each engine for `/v1/models`.

To know what an engine serves that did not say so in Redis, and to see whether an ejected engine is back, so that no
user's request has to find out.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import orjson

from gateway.fleet import Engine
from gateway.framing import Framer, ResponseHead
from gateway.plane import Plane
from policy.types import is_name

LOOK_S = 0.25
UNKNOWN_S = 1.0
KNOWN_S = 15.0
ANSWER_BYTES = 4 * 1024 * 1024
ANSWER_S = 5.0

_log = logging.getLogger(__name__)
_OK = 200
_PATH = b"/v1/models"


class _Answer:
    """Collects one small answer: a `gateway.upstream.Reader`."""

    def __init__(self) -> None:
        self.whole: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._status = 0
        self._parts: list[bytes] = []

    def head(self, head: ResponseHead, framer: Framer) -> None:
        """See `Reader`."""
        del framer
        self._status = head.status

    def body(self, raw: bytes, payload: list[bytes]) -> None:
        """See `Reader`."""
        del raw
        self._parts += payload
        if sum(map(len, self._parts)) > ANSWER_BYTES:
            self._fail("too long")

    def end(self) -> None:
        """See `Reader`."""
        if self._status != _OK:
            self._fail(f"status {self._status}")
        elif not self.whole.done():
            self.whole.set_result(b"".join(self._parts))

    def broken(self, reason: str, *, is_stale: bool) -> None:
        """See `Reader`."""
        del is_stale
        self._fail(reason)

    def _fail(self, reason: str) -> None:
        if not self.whole.done():
            self.whole.set_exception(OSError(reason))


async def ask(engine: Engine, timeout_s: float) -> tuple[Mapping[str, Any], ...]:
    """Return what `engine` says it serves. Raises `OSError` (time-outs included) when it does not say."""
    async with asyncio.timeout(timeout_s):
        connection = await engine.pool.connect()
        answer = _Answer()
        try:
            connection.send(answer, (engine.head(b"GET", _PATH) + b"accept: application/json\r\n\r\n",))
            text = await answer.whole
        finally:
            connection.release(answer)
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise OSError("its list of models is not JSON") from error
    cards = found.get("data") if isinstance(found, dict) else None
    if not isinstance(cards, list):
        raise OSError("its list of models has no data")
    return tuple(card for card in cards if isinstance(card, dict) and is_name(str(card.get("id", ""))))


class Discovery:
    """Keeps what the fleet serves up to date."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._asking: set[Engine] = set()

    async def run(self) -> None:
        """Ask for ever whoever is due."""
        while True:
            now = self._plane.monotonic()
            for engine in [*self._plane.fleet.engines.values()]:
                if engine not in self._asking and self._is_due(engine, now):
                    self._asking.add(engine)
                    self._plane.spawn(asyncio.get_running_loop().create_task(self._ask(engine)))
            await asyncio.sleep(LOOK_S)

    async def once(self) -> None:
        """Ask everybody once, at the same time."""
        await asyncio.gather(*(self._ask(engine) for engine in self._plane.fleet.engines.values()))

    def _is_due(self, engine: Engine, now: float) -> bool:
        if engine.asked_at is None:
            return True
        if engine.standing.is_ejected:
            return now >= max(engine.standing.ejected_until, engine.asked_at + LOOK_S)
        return now - engine.asked_at >= (UNKNOWN_S if engine.cards is None else KNOWN_S)

    async def _ask(self, engine: Engine) -> None:
        engine.asked_at = self._plane.monotonic()
        try:
            cards = await ask(engine, ANSWER_S)
        except OSError as error:
            if engine.standing.is_ejected:
                engine.standing.eject(self._plane.monotonic())
            said = str(error) or type(error).__name__
            if said != engine.complaint:
                engine.complaint = said
                _log.warning("%s does not say what it serves, asking on: %s", engine.engine_id, said)
            return
        finally:
            self._asking.discard(engine)
        engine.complaint = None
        if engine.standing.is_ejected:
            engine.standing.restore(self._plane.monotonic())
        if cards != engine.cards:
            engine.cards = cards
            self._plane.fleet.index()
