"""Finds the home of a session: the same engine in every gateway, without memory or communication. Pure.

Rendezvous hashing with bounded loads. Each engine scores `hash(session) * hash(engine) mod 2^64`, where both hashes are
64 bits of BLAKE2b, made odd. The usable engine of the highest score is the home. So when an engine joins, only the
sessions move whose home it becomes; when an engine leaves, only its own sessions move. When the home is busier than
`gateway.routing.balance.bound`, the request goes to the next highest score within the bound, which is the same engine
in every gateway that sees the same load. The least busy engine is always within the bound, so there is always an
answer.

The name of a session is the header `x-session-id` or that of an agent (`gateway.wire.heads`), else, in the body,
`prompt_cache_key`, `metadata.session_id`, `metadata.user_id` (Anthropic's), `user`: the most specific field first.
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
    """Return the name of a request's session; `None` when it names none."""
    if header:
        return header
    session = body.get("prompt_cache_key")
    if session and type(session) is str:
        return session
    metadata = body.get("metadata")
    if type(metadata) is dict:
        for name in ("session_id", "user_id"):
            session = metadata.get(name)
            if session and type(session) is str:
                return session
    session = body.get("user")
    return session if session and type(session) is str else None


def home(session: str, engines: Sequence[C], busy: Sequence[float], limit: float) -> tuple[C, bool]:
    """Return the engine for `session`, and whether it is the home rather than a later choice.

    `engines` must not be empty, and at least one of them must be at most as busy as `limit`.
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
