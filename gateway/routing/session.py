"""Which engine is a session's home: the same in every gateway, without memory and without talking.

Rendezvous hashing with bounded loads. Each engine scores `hash(session) * hash(engine) mod 2^64`, both hashes 64
bits of BLAKE2b and odd; the highest score among the usable engines is the home. So an engine that joins takes only
the sessions that are now its own, and one that leaves gives up only its own. A home that is busier than
`gateway.routing.balance.bound` passes the request on to the next score within the bound: again the same engine in every
gateway that sees the same load. The least busy engine is always within the bound, so there is always an answer.

A session is named by the header `x-session-id`, else by the body: `prompt_cache_key`, `metadata.session_id`,
`metadata.user_id` (Anthropic's), `user`. From what was meant for this to what merely tends to go together. Pure.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

from specpilot.gateway.routing.balance import C

_MASK: Final = (1 << 64) - 1


def hash_of(name: str) -> int:
    """Return 64 odd bits of `name`, the same in every process."""
    return int.from_bytes(blake2b(name.encode(errors="surrogatepass"), digest_size=8).digest()) | 1


def session_of(header: str | None, body: Mapping[str, Any]) -> str | None:
    """Return the name of the session that a request belongs to; `None` when it names none."""
    if header:
        return header
    found = body.get("prompt_cache_key")
    if found and type(found) is str:
        return found
    metadata = body.get("metadata")
    if type(metadata) is dict:
        for name in ("session_id", "user_id"):
            found = metadata.get(name)
            if found and type(found) is str:
                return found
    found = body.get("user")
    return found if found and type(found) is str else None


def home(session: str, engines: Sequence[C], busy: Sequence[float], limit: float) -> tuple[C, bool]:
    """Return the engine for `session`, and whether it is the home rather than the next one after it.

    `engines` must not be empty; at least one of them must be at most as busy as `limit`.
    """
    key = hash_of(session)
    chosen: C | None = None
    highest = best = -1
    for engine, tokens in zip(engines, busy, strict=True):
        score = key * engine.engine_hash & _MASK
        highest = max(highest, score)
        if score > best and tokens <= limit:
            chosen, best = engine, score
    assert chosen is not None
    return chosen, best == highest
