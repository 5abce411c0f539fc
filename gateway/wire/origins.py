"""Defines the web pages that may read the gateway's answers (CORS, by the Fetch standard). Pure.

A browser asks before certain requests (a preflight), and hides an answer from a page whose origin the answer does not
name. The gateway alone decides: engines do not get `Origin`, and their CORS headers are dropped.
"""

from functools import lru_cache
from typing import Final

ANY: Final = "*"
METHODS: Final[tuple[str, ...]] = ("GET", "HEAD", "POST", "OPTIONS")
EXPOSED: Final[tuple[str, ...]] = (
    "retry-after",
    "x-request-id",
    *(f"x-specpilot-{name}" for name in ("class", "engine", "k-max", "model", "policy-version")),
    *(f"x-specpilot-{name}-ms" for name in ("overhead", "queue")),
    *(f"x-ratelimit-{name}-{kind}" for name in ("limit", "remaining", "reset") for kind in ("requests", "tokens")),
)
"""The headers that a page may read, in addition to the few that it always may."""
MAX_AGE_S: Final = 600
"""Seconds for which a browser may cache a preflight's answer. Chromium's own limit is 7200."""

_EXPOSE: Final = b"access-control-expose-headers: " + ", ".join(EXPOSED).encode() + b"\r\n"


class Origins:
    """The `allowed` origins: `scheme://host[:port]` each, or `*` alone."""

    __slots__ = ("allowed", "is_any")

    def __init__(self, allowed: tuple[str, ...]) -> None:
        self.allowed = allowed
        self.is_any = ANY in allowed

    def lines(self, origin: bytes) -> bytes:
        """Return the header lines of an answer to a page of `origin`: with credentials, unless any origin may call."""
        return _lines(self.allowed, self.is_any, origin)

    def allows(self, origin: bytes) -> bool:
        """Whether pages of `origin` may call."""
        return self.is_any or origin.lower().decode("latin-1") in self.allowed


@lru_cache(maxsize=256)
def _lines(allowed: tuple[str, ...], is_any: bool, origin: bytes) -> bytes:  # noqa: FBT001 - cached
    if is_any:
        return b"access-control-allow-origin: *\r\n" + _EXPOSE
    if origin.lower().decode("latin-1") not in allowed:
        return b"vary: origin\r\n"
    named = b"access-control-allow-origin: %s\r\naccess-control-allow-credentials: true\r\nvary: origin\r\n" % origin
    return named + _EXPOSE
