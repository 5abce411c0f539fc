"""Who may use the admin API, and for what.

A caller is known by a bearer token: the one of `--admin-token`, which is an admin; a named token, with its role; or one
of the identity provider of `--oidc-issuer`. With `--trust-this-machine` and no other way in, a caller on this machine
needs none and is an admin. Then neither a web page in a browser on this machine nor the clients of a proxy here may
reach the API (`specpilot.policy.this_machine`).

What a call needs is one table, so that a new route cannot be forgotten: reading needs a viewer, writing an admin unless
the table says that an operator will do.
"""

import asyncio
import hashlib
import hmac
from dataclasses import dataclass
from typing import Protocol

from fastapi import Request

from specpilot.controller.admin.problems import ApiError
from specpilot.policy.access import Role, id_of
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
    """Who calls: the name in histories and audit, the role, and until when (Unix seconds) the token is good."""

    name: str
    role: Role
    expires_at: float | None = None


class IdentityProvider(Protocol):
    """Knows callers by tokens that somebody else issued."""

    async def caller(self, token: str) -> Caller | None:
        """Return who sends `token`; `None` when it is no token of this provider.

        Raises `ApiError` for one of the provider's that may not go on, with the reason.
        """


@dataclass(frozen=True, slots=True)
class Entrance:
    """The ways in: the first admin's token, whether this machine is trusted, the identity provider."""

    admin_token: str | None = None
    trusts_this_machine: bool = False
    provider: IdentityProvider | None = None


class Access:
    """The rule, as a FastAPI dependency; leaves the `Caller` in `request.state.caller`."""

    def __init__(self, store: Store, clock: Clock, entrance: Entrance) -> None:
        self._store = store
        self._clock = clock
        self._digest = _digest(entrance.admin_token) if entrance.admin_token else None
        self._provider = entrance.provider
        is_only_way = entrance.admin_token is None and entrance.provider is None
        self._trusts_this_machine = entrance.trusts_this_machine and is_only_way

    async def __call__(self, request: Request) -> None:
        """Raise `ApiError` 401 or 403 unless the caller may do what it asks for."""
        request.state.caller = caller = await self._caller(request)
        needed = needed_role(request.method, request.url.path)
        if not caller.role.includes(needed):
            message = f"{caller.name} is {_a(caller.role)}; this needs {_a(needed)}: ask an admin for such a token"
            raise ApiError(403, "role_too_low", message, param="Authorization")

    async def _caller(self, request: Request) -> Caller:
        scheme, _, sent = request.headers.get("authorization", "").partition(" ")
        token = sent.strip()
        if scheme.lower() == "bearer" and token:
            return await self._named(token)
        if self._trusts_this_machine:
            require_this_machine(request)
            return Caller("this machine", Role.ADMIN)
        raise _unknown("send a token of the admin API")

    async def _named(self, token: str) -> Caller:
        if self._digest is not None and hmac.compare_digest(_digest(token), self._digest):
            return Caller("--admin-token", Role.ADMIN)
        token_id = id_of(token)
        if token_id is not None:
            found = await asyncio.to_thread(self._store.admin_token, token_id)
            if found is not None and found.is_token(token):
                if found.has_expired(self._clock.now()):
                    message = f"the token {found.name!r} has expired; ask an admin to rotate it"
                    raise ApiError(401, "token_expired", message, param="Authorization", headers=_CHALLENGE)
                return Caller(found.name, found.role, found.expires_at)
        if self._provider is not None:
            provided = await self._provider.caller(token)
            if provided is not None:
                return provided
        raise _unknown("this token is not known, or was revoked; send another one")


def needed_role(method: str, path: str) -> Role:
    """Return what a call of `method` on `path` needs."""
    if method in _READS:
        return Role.ADMIN if path.startswith(_ADMIN_READS) else Role.VIEWER
    return Role.OPERATOR if path.startswith(_OPERATOR_WRITES) else Role.ADMIN


def require_this_machine(request: Request) -> None:
    """Raise `ApiError` 403 unless a program on this machine calls, and neither a web page nor a proxy."""
    why = why_foreign(request.client.host if request.client else "", request.headers, request.scope["http_version"])
    if why is not None:
        message = f"without a token the admin API serves only this machine, and {why}; start the controller with "
        raise ApiError(403, "admin_token_required", message + "--admin-token and send it")


def _unknown(message: str) -> ApiError:
    full = f"{message}: Authorization: Bearer <token of --admin-token, or one that an admin made>"
    return ApiError(401, "invalid_admin_token", full, param="Authorization", headers=_CHALLENGE)


def _a(role: Role) -> str:
    return f"{'a' if role is Role.VIEWER else 'an'} {role.value}"


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()
