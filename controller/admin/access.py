"""Authenticates the callers of the admin API and checks their roles.

A caller sends a bearer token: the one of `--admin-token`, whose role is admin; a named token, with its role; or one of
the identity provider of `--oidc-issuer`. With `--trust-this-machine`, and neither `--admin-token` nor `--oidc-issuer`,
a program on this machine needs no token and is an admin. Web pages in a browser on this machine and requests through a
proxy on it are still rejected (`specpilot.policy.this_machine`).

The role that a call needs depends on its method and path (`needed_role`), so that every new route has a role.
"""

import asyncio
import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from fastapi import Request

from specpilot.controller.admin.problems import ApiError
from specpilot.policy.access import Role, id_of, sha256_of
from specpilot.policy.clock import Clock
from specpilot.policy.store import Store
from specpilot.policy.this_machine import why_foreign

_CHALLENGE = {"WWW-Authenticate": "Bearer"}
_READS = {"GET", "HEAD"}
_ADMIN_READS = ("/admin/tokens",)
_OPERATOR_WRITES = (
    *("/admin/policies", "/admin/canaries", "/admin/canary-promotions", "/admin/freezes"),
    "/admin/model-routes",
)


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller: its name in histories and audit, its role, and the time (Unix seconds) at which its token expires."""

    name: str
    role: Role
    expires_at: float | None = None


Identify = Callable[[str], Awaitable[Caller | None]]
"""Returns the caller of a token that another service issued; `None` when the token is none of its tokens.

Raises `ApiError` with the reason for a token of the service that is rejected.
"""


class Access:
    """Checks a request, as a FastAPI dependency; leaves the `Caller` in `request.state.caller`."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        admin_token: str | None = None,
        identify: Identify | None = None,
        *,
        trusts_this_machine: bool = False,
    ) -> None:
        self._store = store
        self._clock = clock
        self._digest = sha256_of(admin_token) if admin_token else None
        self._identify = identify
        self._trusts_this_machine = trusts_this_machine and admin_token is None and identify is None

    async def __call__(self, request: Request) -> None:
        """Raise `ApiError` 401 or 403 unless the caller's role allows the request."""
        request.state.caller = caller = await self._caller(request)
        needed = needed_role(request.method, request.url.path)
        if not caller.role.includes(needed):
            message = f"{caller.name} is {_a(caller.role)}; this needs {_a(needed)}: ask an admin for such a token"
            raise ApiError(403, "role_too_low", message, param="Authorization")

    async def _caller(self, request: Request) -> Caller:
        for stated in request.headers.getlist("authorization"):  # a proxy may add an empty one
            scheme, _, credential = stated.partition(" ")
            token = credential.strip()
            if scheme.lower() == "bearer" and token:
                return await self._named(token)
        if self._trusts_this_machine:
            require_this_machine(request)
            return Caller("this machine", Role.ADMIN)
        raise _unknown("send a token of the admin API")

    async def _named(self, token: str) -> Caller:
        if self._digest is not None and hmac.compare_digest(sha256_of(token), self._digest):
            return Caller("--admin-token", Role.ADMIN)
        token_id = id_of(token)
        if token_id is not None:
            record = await asyncio.to_thread(self._store.admin_token, token_id)
            if record is not None and record.is_token(token):
                if record.has_expired(self._clock.now()):
                    message = f"the token {record.name!r} has expired; ask an admin to rotate it"
                    raise ApiError(401, "token_expired", message, param="Authorization", headers=_CHALLENGE)
                return Caller(record.name, record.role, record.expires_at)
        if self._identify is not None and (caller := await self._identify(token)) is not None:
            return caller
        raise _unknown("this token is unknown or revoked; send another one")


def needed_role(method: str, path: str) -> Role:
    """Return the role that a call of `method` on `path` needs."""
    if method in _READS:
        return Role.ADMIN if path.startswith(_ADMIN_READS) else Role.VIEWER
    return Role.OPERATOR if path.startswith(_OPERATOR_WRITES) else Role.ADMIN


def require_this_machine(request: Request) -> None:
    """Raise `ApiError` 403 unless a program on this machine calls directly, not a web page or a proxy."""
    why = why_foreign(request.client.host if request.client else "", request.headers, request.scope["http_version"])
    if why is not None:
        message = f"without a token the admin API serves only this machine, and {why}; start the controller with "
        raise ApiError(403, "admin_token_required", message + "--admin-token and send it")


def _unknown(message: str) -> ApiError:
    full = f"{message}: Authorization: Bearer <token of --admin-token, or one that an admin made>"
    return ApiError(401, "invalid_admin_token", full, param="Authorization", headers=_CHALLENGE)


def _a(role: Role) -> str:
    return f"{'a' if role is Role.VIEWER else 'an'} {role.value}"
