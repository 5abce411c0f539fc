"""Sets members of a request's body in its bytes. Pure.

The gateway's decisions travel in headers (`gateway.wire.heads.decision_lines`). Three members of a body can only be set
in it, because every OpenAI-compatible engine reads them there: `model`, if another model serves the request or it names
none; `stream_options`, for a stream whose usage the client did not ask for; `priority` of the client's own, which
becomes 0, because it orders the engine's queue for all clients. All other bodies pass unchanged.

A member that the body lacks becomes its first one. Of one that it has the value is replaced; if it is stated twice,
both are, so it does not matter which one the engine uses.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from specpilot.gateway.wire.body_fields import REQUEST_ID
from specpilot.gateway.wire.errors import BodyTooComplexError
from specpilot.gateway.wire.json_members import WALKED, WALKED_STRINGS, members_of
from specpilot.gateway.wire.outline import BodyOutline
from specpilot.gateway.wire.request_facts import RequestFacts
from specpilot.gateway.wire.routes import STORED

COPY_LIMIT_BYTES: Final = 65_536
"""Bytes up to which a body is copied into one buffer with its new members. A larger one is sent in slices."""


def amend(
    body: tuple[bytes, ...], facts: RequestFacts, members: Mapping[str, bytes], outline: BodyOutline | None = None
) -> tuple[bytes | memoryview, ...]:
    """Return `body` with `members` (name to JSON value) set, as buffers to send one after another.

    `body` is in one part, or has an `outline`. `facts` must be the result of `read_facts` for it or its outline. Raises
    `BodyTooComplexError`.
    """
    if not members or facts.path in STORED:
        return body
    text = body[0] if outline is None else outline.finish()
    opened = 0 if text[:1] == b"{" else text.index(b"{")
    added = b",".join(
        [b'"%s":%s' % (name.encode(), value) for name, value in members.items() if name not in facts.body]
    )
    edits: list[tuple[int, int, bytes]] = []
    if added:
        start = opened + 1 if outline is None else outline.place(opened + 1)
        edits.append((start, start, added + b"," if facts.body else added))
    if any([name in facts.body for name in members]):  # noqa: C419 - a generator costs more than a list of three
        if outline is not None and outline.strings > WALKED_STRINGS:
            raise BodyTooComplexError(f"{WALKED} at most {WALKED_STRINGS} strings can be read; send fewer")
        replaced = [(begin, end, members[name]) for name, begin, end in members_of(text, opened) if name in members]
        if outline is not None:
            replaced = [(outline.place(begin), outline.place(end), value) for begin, end, value in replaced]
        edits += replaced
    return _spliced(body, edits)


def with_request_id(
    body: Sequence[bytes | memoryview], identifier: str, *, is_null: bool
) -> Sequence[bytes | memoryview]:
    """Return `body`, an object with members, with `identifier` as its `request_id`, which `is_null` or absent.

    Without one, a body that begins with more than `COPY_LIMIT_BYTES` of white space stays unchanged.
    """
    value = b'"%s"' % identifier.encode()
    if is_null:
        text = b"".join(body)
        edits = [(begin, end, value) for key, begin, end in members_of(text, text.index(b"{")) if key == REQUEST_ID]
        return _spliced((text,), edits)
    at = bytes(body[0][:COPY_LIMIT_BYTES]).find(b"{") + 1
    return _spliced(body, [(at, at, b'"%s":%s,' % (REQUEST_ID.encode(), value))]) if at else body


def _spliced(body: Sequence[bytes | memoryview], edits: list[tuple[int, int, bytes]]) -> tuple[bytes | memoryview, ...]:
    """Return `body` with each of `edits` (start, end, new text) applied. Edits are sorted and do not overlap."""
    first = body[0]
    is_small = len(body) == 1 and len(first) <= COPY_LIMIT_BYTES
    if is_small and len(edits) == 1 and isinstance(first, bytes):  # most requests: the added members
        start, end, text = edits[0]
        return (first[:start] + text + first[end:],)
    # Slices of the body's parts, without a copy, and the new texts between them. The last edit adds nothing; with it
    # the loop reaches the body's end.
    parts: list[bytes | memoryview] = []
    index = begin = position = 0  # the current part, its offset in the body, the offset up to which all is done
    size = sum(map(len, body))
    for start, end, text in (*edits, (size, size, b"")):
        while position < end or position < start:
            part = body[index]
            stop = begin + len(part)
            upto = min(stop, start if position < start else end)
            if position < start:  # kept; between `start` and `end`, replaced
                parts.append(memoryview(part)[position - begin : upto - begin])
            position = upto
            if position == stop:
                begin = stop
                index += 1
        if text:
            parts.append(text)
    return (b"".join(parts),) if is_small else tuple(parts)
