"""Identifiers of responses that name the engine that made them.

An engine keeps its responses to itself, so what refers to one (`previous_response_id`, `GET /v1/responses/{id}`) can be
answered there alone. The gateway gives each response its identifier (vLLM: the body's `request_id`): `resp_`,
`TAG_DIGITS` hexadecimal digits of the engine's hash, and random ones. So every worker and every replica finds the
engine, after a restart too, and nothing is remembered. The tag tells engines apart; it is no address. Pure.
"""

import re
from collections.abc import Sequence

from specpilot.gateway.wire.tuning import TAG_DIGITS

_RANDOM_DIGITS = 26
_OURS = re.compile(rf"resp_([0-9a-f]{{{TAG_DIGITS}}})[0-9a-f]{{{_RANDOM_DIGITS}}}")
_LOOKED_AT = 65_536


def tag_of(engine_hash: int) -> str:
    """Return the tag of the engine whose hash (64 bits) is `engine_hash`."""
    return f"{engine_hash:016x}"[:TAG_DIGITS]


def new_response_id(engine_hash: int, random_bits: int) -> str:
    """Return an identifier for a response of that engine; `random_bits` is a random whole number of 104 bits."""
    return f"resp_{tag_of(engine_hash)}{random_bits:0{_RANDOM_DIGITS}x}"


def tag_in(identifier: str) -> str | None:
    """Return the tag in `identifier`; `None` when no gateway made it."""
    found = _OURS.fullmatch(identifier)
    return None if found is None else found[1]


def identified(body: Sequence[bytes | memoryview], identifier: str) -> Sequence[bytes | memoryview]:
    """Return `body`, a JSON object with members in one or more buffers, with `request_id` as its first member.

    One that begins with more than 64 KiB of white space stays as it is.
    """
    first = body[0]
    at = bytes(first[:_LOOKED_AT]).find(b"{") + 1
    if not at:
        return body
    member = b'"request_id":"%s",' % identifier.encode()
    if len(body) == 1 and isinstance(first, bytes) and len(first) <= _LOOKED_AT:
        return (first[:at] + member + first[at:],)
    view = memoryview(first)
    return (view[:at], member, view[at:], *body[1:])
