"""Which web pages may read the gateway's answers (CORS, as the Fetch standard has it). Pure.

Browsers ask before a request that is more than a form's (a preflight), and keep an answer from a page whose origin it
does not name. The choice is the gateway's alone: engines do not see `Origin`, and what they say of origins is dropped.
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
    *(f"x-ratelimit-{what}-{kind}" for what in ("limit", "remaining", "reset") for kind in ("requests", "tokens")),
)
"""What a page may read of an answer's headers besides the few that it always may."""
MAX_AGE_S: Final = 600
"""For how long a browser may remember a preflight's answer; Chromium's own limit is 7200."""

_EXPOSE: Final = b"access-control-expose-headers: " + ", ".join(EXPOSED).encode() + b"\r\n"


class Origins:
    """The origins that are `allowed`: `scheme://host[:port]` each, or `*` alone."""

    __slots__ = ("allowed", "is_any")

    def __init__(self, allowed: tuple[str, ...]) -> None:
        self.allowed = allowed
        self.is_any = ANY in allowed

    def lines(self, origin: bytes) -> bytes:
        """Return the header lines of an answer to a page of `origin`: with credentials, unless every origin may."""
        return _lines(self.allowed, self.is_any, origin)


@lru_cache(maxsize=256)
def _lines(allowed: tuple[str, ...], is_any: bool, origin: bytes) -> bytes:  # noqa: FBT001 - cached
    if is_any:
        return b"access-control-allow-origin: *\r\n" + _EXPOSE
    if origin.lower().decode("latin-1") not in allowed:
        return b"vary: origin\r\n"
    named = b"access-control-allow-origin: %s\r\naccess-control-allow-credentials: true\r\nvary: origin\r\n" % origin
    return named + _EXPOSE
