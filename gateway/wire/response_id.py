"""Identifiers of responses that name the engine that made them, and the API key that they were made for. Pure.

An engine does not share its responses, so a request that refers to one (`previous_response_id`, `GET
/v1/responses/{id}`) can only be answered there. And an engine keeps the responses of all keys together. So the gateway
gives each response an identifier (vLLM: the body's `request_id`): `resp_`, `TAG_DIGITS` hexadecimal digits of the
engine's hash, random digits, and `OWNER_DIGITS` of a hash of those and the key's id. Every worker and replica can read
engine and owner from it, also after a restart, without memory. Neither tag nor owner is secret. Another key cannot use
the identifier, because its owner digits differ; and with changed owner digits it names no response.
"""

import re
from hashlib import blake2b
from typing import Final

TAG_DIGITS: Final = 6
"""Hexadecimal digits, 24 bits. Of fleets of 50 engines, one in 14,000 has two with the same tag."""

OWNER_DIGITS: Final = 8
"""Hexadecimal digits, 32 bits: one key in 4,000 million passes as another's. 72 random bits remain."""


_RANDOM_DIGITS: Final = 32 - TAG_DIGITS - OWNER_DIGITS
_OURS: Final = re.compile(rf"resp_([0-9a-f]{{{TAG_DIGITS}}})([0-9a-f]{{{_RANDOM_DIGITS}}})([0-9a-f]{{{OWNER_DIGITS}}})")
RANDOM_BITS: Final = 4 * _RANDOM_DIGITS


def tag_of(engine_hash: int) -> str:
    """Return the tag of the engine with the hash `engine_hash` (64 bits)."""
    return f"{engine_hash:016x}"[:TAG_DIGITS]


def new_response_id(engine_hash: int, key_id: str | None, random_bits: int) -> str:
    """Return an identifier for a response of that engine, made for the key `key_id`; `None` without keys.

    `random_bits` is a random whole number of `RANDOM_BITS` bits.
    """
    random = f"{random_bits:0{_RANDOM_DIGITS}x}"
    return f"resp_{tag_of(engine_hash)}{random}{_owner(random, key_id)}"


def is_of_another(identifier: str, key_id: str) -> bool:
    """Whether `identifier` was made for another key than `key_id`. One that was made without a key belongs to all."""
    match = _OURS.fullmatch(identifier)
    return match is not None and match[3] not in (_owner(match[2], key_id), _owner(match[2], None))


def tag_in(identifier: str) -> str | None:
    """Return the tag in `identifier`; `None` when no gateway made it."""
    match = _OURS.fullmatch(identifier)
    return None if match is None else match[1]


def _owner(random: str, key_id: str | None) -> str:
    text = random if key_id is None else f"{random}:{key_id}"
    return blake2b(text.encode(), digest_size=OWNER_DIGITS // 2).hexdigest()
