"""A request in the form for its engine: the head for this engine, the client's headers, the gateway's, the body."""

import secrets
from collections.abc import Sequence
from typing import Final

from specpilot.gateway.engines.fleet import Engine
from specpilot.gateway.relay.prepared_request import PreparedRequest
from specpilot.gateway.wire.amendments import with_request_id
from specpilot.gateway.wire.heads import RequestHead
from specpilot.gateway.wire.response_id import RANDOM_BITS, new_response_id

SMALL_BODY_BYTES: Final = 65_536
"""Bytes up to which a body is copied behind its head, because one write takes less time than two."""


def engine_request(
    engine: Engine, prepared: PreparedRequest, request: RequestHead, *, names_response: bool
) -> tuple[bytes | memoryview, ...]:
    """Return the request for `engine`, as buffers to send one after another. `request` is the client's head.

    `names_response`: the gateway gives a response an identifier, if an engine keeps the response and the client chose
    none. The identifier names the engine, so a retry has another one.
    """
    body: Sequence[bytes | memoryview] = prepared.body
    if prepared.is_unnamed and names_response:
        made_for = new_response_id(engine.engine_hash, prepared.key_id, secrets.randbits(RANDOM_BITS))
        body = with_request_id(body, made_for, is_null=prepared.has_null_id)
    only = body[0] if len(body) == 1 else None
    size = sum(map(len, body)) if only is None else len(only)
    head = b"%s%s%sx-request-id: %s\r\ncontent-length: %d\r\n\r\n" % (
        engine.head(request.method, (request.target or request.path).encode()),
        request.forwarded,
        prepared.engine_lines,
        request.request_id,
        size,
    )
    if size <= SMALL_BODY_BYTES and isinstance(only, bytes):
        return (head + only,)
    return (head, *body)
