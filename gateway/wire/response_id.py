"""Identifiers of responses that name the engine that made them, and the API key that they were made for.

An engine keeps its responses to itself, so what refers to one (`previous_response_id`, `GET /v1/responses/{id}`) can be
answered there alone, and it keeps those of all keys together. The gateway gives each response an identifier (vLLM:
the body's `request_id`): `resp_`, `TAG_DIGITS` hexadecimal digits of the engine's hash, random ones, and `OWNER_DIGITS`
of a hash of those and the id of the key. So every worker and every replica finds the engine and tells whose the
response is, after a restart too, and nothing is remembered. Neither tag nor owner is a secret: to another key the
engine's response has no other name, and one made up for a key is that of no response. Pure.
"""

import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from specpilot.gateway.wire.tuning import OWNER_DIGITS, TAG_DIGITS

_RANDOM_DIGITS: Final = 32 - TAG_DIGITS - OWNER_DIGITS
_OURS: Final = re.compile(rf"resp_([0-9a-f]{{{TAG_DIGITS}}})([0-9a-f]{{{_RANDOM_DIGITS}}})([0-9a-f]{{{OWNER_DIGITS}}})")
RANDOM_BITS: Final = 4 * _RANDOM_DIGITS
_LOOKED_AT: Final = 65_536


def tag_of(engine_hash: int) -> str:
    """Return the tag of the engine whose hash (64 bits) is `engine_hash`."""
    return f"{engine_hash:016x}"[:TAG_DIGITS]


def new_response_id(engine_hash: int, key_id: str | None, random_bits: int) -> str:
    """Return an identifier for a response of that engine, made for the API key `key_id`, `None` where none is needed.

    `random_bits` is a random whole number of `RANDOM_BITS` bits.
    """
    random = f"{random_bits:0{_RANDOM_DIGITS}x}"
    return f"resp_{tag_of(engine_hash)}{random}{_owner(random, key_id)}"


def is_of_another(identifier: str, key_id: str) -> bool:
    """Whether a gateway made `identifier` for another API key than `key_id`. What no key was needed for is nobody's."""
    found = _OURS.fullmatch(identifier)
    return found is not None and found[3] not in (_owner(found[2], key_id), _owner(found[2], None))


def tag_in(identifier: str) -> str | None:
    """Return the tag in `identifier`; `None` when no gateway made it."""
    found = _OURS.fullmatch(identifier)
    return None if found is None else found[1]


def _owner(random: str, key_id: str | None) -> str:
    said = random if key_id is None else f"{random}:{key_id}"
    return blake2b(said.encode(), digest_size=OWNER_DIGITS // 2).hexdigest()


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
