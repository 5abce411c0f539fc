"""Answers whoever asks for the metrics: one exposition at a time, shared by all who waited for it.

To write the text takes tens of milliseconds where models, classes and keys are many, and nobody needs a key to ask for
it. So it is written on a thread (by `make`), never twice at once, and after each the thread rests for `RESTS` times as
long: that bounds what all who ask can take together. Nobody gets numbers from before they asked.
"""

import asyncio
from collections.abc import Awaitable, Callable

from specpilot.gateway.telemetry.tuning import REST_LIMIT_S, RESTS


class Scrape:
    """The metrics as text. `make` returns them as they are now, and may raise."""

    def __init__(self, make: Callable[[], Awaitable[bytes]], monotonic: Callable[[], float]) -> None:
        self._make = make
        self._monotonic = monotonic
        self._turn = asyncio.Lock()
        self._begun = self._made = 0  # by number: the exposition begun last, and the one at hand
        self._text = b""
        self._rests_until = 0.0

    async def read(self) -> bytes:
        """Return an exposition that began after this was called. Raises what `make` does."""
        asked = self._begun
        async with self._turn:
            if self._made <= asked:
                await asyncio.sleep(max(0.0, self._rests_until - self._monotonic()))
                self._begun += 1
                number, began_at = self._begun, self._monotonic()
                try:
                    self._text = await self._make()
                finally:
                    now = self._monotonic()
                    self._rests_until = now + min(REST_LIMIT_S, RESTS * (now - began_at))
                self._made = number
            return self._text
