"""The body of one request as it arrives: kept in parts, bounded, decoded, counted against the bytes of all bodies.

A large body is kept in the parts in which it arrived, except that small parts are joined. Joining all of it would block
every other request during that time. For the same reason a compressed body is decoded with pauses, once it is whole.
"""

import asyncio
from typing import Final

from specpilot.gateway.relay.context import RETRY_AFTER_S, GatewayContext
from specpilot.gateway.wire.content_coding import codings_of, decoded
from specpilot.gateway.wire.errors import (
    BodiesFullError,
    BodyTooComplexError,
    BodyTooLargeError,
    GatewayError,
    UnsupportedCodingError,
)
from specpilot.gateway.wire.heads import RequestHead
from specpilot.gateway.wire.outline import OUTLINED_BYTES, BodyOutline

PART_BYTES: Final = 4096
"""Bytes below which parts of a body are joined. A part of two bytes takes 56 as an object of its own."""

BLOCK_BYTES: Final = 65_536
"""Bytes of joined parts that make one part. A smaller number means more parts; a larger one takes longer to copy."""

DECODING_TURN_S: Final = 0.001
"""Seconds of decoding one body before other requests are served."""

UNREAD_BYTES: Final = 64 * 1024 * 1024
"""Bytes up to which a rejected body is read and dropped, to keep the connection. A longer one ends it."""


class RequestBody:
    """The bytes so far of a body. `request` is the head before it.

    `is_encoded`: the body is compressed, and is examined after it is decoded (`decode`).
    """

    __slots__ = (
        "_codings", "_context", "_counted_bytes", "_is_dropped", "_outline", "_parts", "_request", "_size",
        "_tail", "is_encoded",
    )  # fmt: skip

    def __init__(self, context: GatewayContext, request: RequestHead) -> None:
        self._context = context
        self._request = request
        self._codings: tuple[str, ...] = ()
        self._is_dropped = False
        self.is_encoded = False
        self._parts: list[bytes] = []
        self._tail: bytearray | None = None  # later bytes, which came in small parts
        self._outline: BodyOutline | None = None  # of a large body
        self._size = 0
        self._counted_bytes = 0

    def read_codings(self) -> GatewayError | None:
        """Read the codings that the head states; return an error if they cannot be decoded here."""
        stated = self._request.coding
        try:
            self._codings = codings_of(stated)
        except UnsupportedCodingError as error:
            return error
        self.is_encoded = bool(self._codings)
        if self.is_encoded and not self._context.decodes_bodies:
            return UnsupportedCodingError(stated[:64], decoded="")
        return None

    @property
    def has_endless_rest(self) -> bool:
        """Whether the remaining bytes are unbounded, too many to drop, or may never come."""
        request = self._request
        return request.is_chunked or request.is_expecting or (request.length or 0) > UNREAD_BYTES

    def feed(self, data: bytes) -> GatewayError | None:
        """Add the next part; return an error if the body is rejected."""
        self._size += len(data)
        error = self._bound(data)
        if error is not None:
            return error
        if len(data) >= PART_BYTES or not self._parts:
            if self._tail is not None:
                self._seal()
            self._parts.append(data)
            return None
        if self._tail is None:
            self._tail = bytearray()
        self._tail.extend(data)
        if len(self._tail) >= BLOCK_BYTES:
            self._seal()
        return None

    def finish(self) -> tuple[tuple[bytes, ...], BodyOutline | None]:
        """Return the whole body, in one part unless it has an outline, and the outline. Both are released here."""
        parts = self._take_parts()
        outline, self._outline = self._outline, None
        if len(parts) == 1 or outline is not None:
            return tuple(parts), outline
        return (b"".join(parts),), None

    async def decode(self) -> None:
        """Decode the whole body, with pauses for other requests. Raises a `GatewayError` if the result is rejected.

        Both forms count until the answer begins. The client may disconnect in a pause, or a time-out may end the
        request. Either drops the body, which ends this coroutine early. Nothing cancels it.
        """
        if self._is_dropped:
            return
        monotonic = self._context.monotonic
        turn_began_at = monotonic()
        parts = self._take_parts()
        self.is_encoded = False
        self._size = 0
        for piece in decoded(parts, self._codings, self._context.bounds.max_body_bytes):
            if self._is_dropped:
                return
            error = self.feed(piece) if piece else None
            if error is not None:
                raise error
            if monotonic() - turn_began_at > DECODING_TURN_S:
                await asyncio.sleep(0)
                turn_began_at = monotonic()

    def drop(self) -> None:
        """Release everything, and end the decoding."""
        self._is_dropped = True
        self._parts.clear()
        self._tail = self._outline = None
        self.release()

    def release(self) -> None:
        """Stop counting the body: its answer has begun, or it is dropped."""
        self._context.body_bytes -= self._counted_bytes
        self._counted_bytes = 0

    def too_large(self) -> BodyTooLargeError:
        """Return the error for a body above the limit."""
        limit_bytes = self._context.bounds.max_body_bytes
        return BodyTooLargeError(f"the request body is larger than {limit_bytes} bytes (--max-body-bytes); send less")

    def _take_parts(self) -> list[bytes]:
        if self._tail is not None:
            self._seal()
        parts, self._parts = self._parts, []
        return parts

    def _seal(self) -> None:
        tail, self._tail = self._tail, None
        assert tail is not None
        self._parts.append(bytes(tail))

    def _bound(self, data: bytes) -> GatewayError | None:
        context = self._context
        if self._size > context.bounds.max_body_bytes:
            return self.too_large()
        if context.body_bytes + len(data) > context.bounds.max_bodies_bytes:
            return BodiesFullError(
                "the bodies of other requests fill the gateway's memory (--max-bodies-bytes); try again",
                retry_after_s=RETRY_AFTER_S,
            )
        context.body_bytes += len(data)
        self._counted_bytes += len(data)
        if self.is_encoded or self._size <= OUTLINED_BYTES:
            return None
        try:
            if self._outline is None:
                self._outline = BodyOutline()
                self._outline.feed(b"".join((*self._parts, self._tail or b"")))
            self._outline.feed(data)
        except BodyTooComplexError as error:
            return error
        return None
