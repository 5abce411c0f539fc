"""Serves scrapes: one exposition at a time, shared by all scrapes that waited for it.

Making the text takes tens of milliseconds with many models, classes and keys, and a scrape needs no key. So the text is
made on a thread (by `make`), never twice at once. After each time there is a pause of `RESTS` times its duration. This
bounds the cost of all scrapes together. No scrape gets numbers from before its request.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

RESTS: Final = 4.0
"""Pause after an exposition, in multiples of its duration: metrics take at most a fifth of a core."""

REST_LIMIT_S: Final = 1.0
"""Seconds of the longest pause. An exposition that waited for the supervisor took no time of this process."""


class Scrape:
    """The metrics as text. `make` returns them as they are now, and may raise."""

    def __init__(self, make: Callable[[], Awaitable[bytes]], monotonic: Callable[[], float]) -> None:
        self._make = make
        self._monotonic = monotonic
        self._making = asyncio.Lock()
        self._begun = self._made = 0  # numbers of the exposition begun last, and of the present one
        self._text = b""
        self._rests_until = 0.0

    async def read(self) -> bytes:
        """Return an exposition that began after this call. Raises the errors of `make`."""
        begun_before = self._begun
        async with self._making:
            if self._made <= begun_before:
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
