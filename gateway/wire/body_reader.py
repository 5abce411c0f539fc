"""Reads a response's body as it passes: what may be sent of it, and what it says. Pure.

`BodyReader` is the interface, and what holds for a body without events.
"""

from abc import ABC, abstractmethod
from typing import Final

from specpilot.gateway.wire.usage import Usage, is_engines_fault, is_error, last_usage

TAIL_BYTES: Final = 16_384
"""Bytes that are kept at the end of a JSON body, where its usage is. They bound the cost of reading it."""

USAGE_BYTES: Final = 4_096
"""Bytes that are kept from the last `usage` on, if that is before the end."""

_USUAL_BODY: Final = b'{"id"'


class BodyReader(ABC):
    """Reads a body.

    `has_begun`: it has content, or more than can be held back. `deltas` counts events with data, without the end
    marker; `openings` counts those before any content. `is_done`: the body states its end. `has_error`: an error event
    was seen; `has_failed`: one was the engine's fault; `has_failed_first`: only comments and openings came before it.
    """

    has_begun = False
    deltas = 0
    openings = 0
    is_done = False
    has_error = False
    has_failed = False
    has_failed_first = False

    @property
    def tokens(self) -> int:
        """The approximate number of output tokens in the events so far."""
        return 0

    @property
    def is_within_frame(self) -> bool:
        """Whether the beginning of a frame was sent, without its end."""
        return False

    @abstractmethod
    def feed(self, data: bytes) -> bytes:
        """Read the next part of the body; return what may be sent now."""

    def end(self) -> None:  # noqa: B027 - nothing is to be done for most bodies
        """No more of the body will be read."""

    def rest(self) -> bytes:
        """Return what may be sent besides, of a body that has ended."""
        return b""

    @abstractmethod
    def finish(self, usage: Usage) -> None:
        """The body has ended: put its own numbers into `usage`."""


class JsonBody(BodyReader):
    """A JSON body, sent as it comes. Keeps its end, which mostly contains the usage, and usage before that."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._length = 0
        self._is_shortened = False
        self._usage = b""

    def feed(self, data: bytes) -> bytes:
        """Keep the end of the body so far; the first part shows whether the body is an error."""
        if not self.has_begun:
            self.has_begun = True
            self.has_failed_first = not data.startswith(_USUAL_BODY) and is_error(data) and is_engines_fault(data)
        self._parts.append(data)
        self._length += len(data)
        if self._length > 2 * TAIL_BYTES:
            text = b"".join(self._parts)
            at = last_usage(text)
            if 0 <= at < len(text) - TAIL_BYTES:
                self._usage = text[at : at + USAGE_BYTES]
            self._is_shortened = True
            self._parts = [text[-TAIL_BYTES:]]
            self._length = TAIL_BYTES
        return data

    def finish(self, usage: Usage) -> None:
        """The body is whole: put its own numbers into `usage`."""
        text = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        if self._is_shortened or not (usage.read_ending(text) or usage.read_document(text)):
            # The acceptance length may be at the end, behind all else.
            usage.read_part(text if last_usage(text) >= 0 else self._usage + b" " + text)
