"""Who may use the admin API: whoever sends the bearer token, or without a token only callers on this machine.

Without a token a web page in a browser on this machine must still not reach the API: such a call carries a Host that
is not a local name (DNS rebinding) or an Origin that is not the API's own, and is refused.
"""

import hashlib
import hmac
import ipaddress
from urllib.parse import urlsplit

from fastapi import Request

from controller.problems import ApiError

_CHALLENGE = {"WWW-Authenticate": "Bearer"}


class Access:
    """The rule for one token, as a FastAPI dependency."""

    def __init__(self, token: str | None) -> None:
        self._digest = hashlib.sha256(token.encode()).digest() if token else None

    async def __call__(self, request: Request) -> None:
        """Raise `ApiError` 401 or 403 unless the caller may go on."""
        if self._digest is None:
            _require_local(request)
            return
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        given = hashlib.sha256(token.strip().encode()).digest()
        if scheme.lower() != "bearer" or not hmac.compare_digest(given, self._digest):
            raise ApiError(
                401, "invalid_admin_token",
                "send the controller's admin token: Authorization: Bearer <token of --admin-token>",
                param="Authorization", headers=_CHALLENGE,
            )  # fmt: skip


def _require_local(request: Request) -> None:
    peer = request.client.host if request.client else ""
    origin = request.headers.get("origin")
    try:
        host = urlsplit("//" + request.headers.get("host", "")).hostname or ""
        is_own_page = origin is None or urlsplit(origin).netloc == request.headers.get("host")
    except ValueError:  # brackets that are no IPv6 address
        host, is_own_page = "", False
    if not (_is_local(peer) and _is_local(host) and is_own_page):
        raise ApiError(
            403, "admin_token_required",
            "without --admin-token the admin API serves only this machine; start the controller with --admin-token",
        )  # fmt: skip


def _is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
