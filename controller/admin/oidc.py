"""Verifies the tokens of an OpenID Connect provider and returns their callers, with names and roles.

The provider's keys are found by discovery (`/.well-known/openid-configuration`) and read again after some minutes;
while that fails, the last ones stay valid for an hour. After a token with an unknown key id the controller reads the
keys again, at most every half minute. It verifies the signature (asymmetric algorithms only, those of the key), the
issuer, the audience and the times. The caller gets the highest role that a value of the configured claim maps to. Needs
PyJWT with `cryptography`, the extra `oidc`.

Anybody can send a forged token, so a hung provider must not delay other requests: one thread reads the keys, all
waiting requests share one reading, and after a failure there is no reading for `REST_S`.

PyJWT's own `PyJWKClient` (2.15) caches keys and limits readings for unknown ids. It is not used: it drops expired keys
even if the provider is down, it retries at once after a failure, it holds a lock while it reads, and it has neither
discovery nor a bound on the size of a page.
"""

import asyncio
import json
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

import jwt

from specpilot.controller.admin.access import Caller
from specpilot.controller.admin.problems import ApiError
from specpilot.policy.access import Role
from specpilot.policy.clock import Clock
from specpilot.policy.http_client import open_url

RSA_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
ALGORITHMS = (*RSA_ALGORITHMS, "ES256", "ES384", "ES512", "EdDSA")
TIMEOUT_S = 3.0
LONGEST_S = 8.0
"""Limit for both pages together: the time limit of each does not bound a provider that sends slowly."""
REST_S = 5.0
"""Pause after a failure. With a smaller value a provider is used again sooner; with a larger one a failed provider gets
fewer requests."""
LEEWAY_S = 30
KEYS_FOR_S = 300
KEYS_KEPT_S = 3600
"""Largest age of keys while they cannot be read again. A larger value allows longer failures of the provider, but also
accepts a withdrawn key for that long."""
UNKNOWN_KEY_S = 30
"""Least seconds between two readings for an unknown key id, so that forged ids do not cause requests."""
LARGEST_PAGE_BYTES = 1 << 20
_LOGGED_CHARACTERS = 200
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OidcRules:
    """The requirements on a token: its issuer and audience, and the role of each value of `claim`."""

    issuer: str
    audience: str
    claim: str
    roles: Mapping[str, Role]


@dataclass(frozen=True, slots=True)
class _Keys:
    """The issuer's keys by their ids, and the steady time at which they were read."""

    by_id: Mapping[str, jwt.PyJWK]
    read_at: float


class OidcProvider:
    """The callers of one issuer's tokens. Used from one event loop."""

    def __init__(self, rules: OidcRules, clock: Clock) -> None:
        self._rules = rules
        self._clock = clock
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="oidc")
        self._keys: _Keys | None = None
        self._reading: asyncio.Task[_Keys | None] | None = None
        self._rests_until = float("-inf")

    async def caller(self, token: str) -> Caller | None:
        """Return the caller of `token`, verified with the issuer's keys; `None` when it is not a JSON Web Token.

        Raises `ApiError` for a JSON Web Token that is expired, forged or for another audience.
        """
        if token.count(".") != 2:  # noqa: PLR2004 - head, claims, signature
            return None
        try:
            key = await self._key(jwt.get_unverified_header(token).get("kid"))
            claims = jwt.decode(
                token, key.key, algorithms=_algorithms_of(key),
                issuer=self._rules.issuer, audience=self._rules.audience, leeway=LEEWAY_S,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )  # fmt: skip
        except jwt.ExpiredSignatureError as error:
            raise _refused("token_expired", "the token has expired; sign in again") from error
        except (jwt.PyJWTError, TypeError, ValueError) as error:  # PyJWT raises any of these for malformed tokens
            raise _refused("invalid_admin_token", f"the token is not good here: {error}") from error
        return self._known(claims)

    async def _key(self, key_id: str | None) -> jwt.PyJWK:
        """Return the issuer's key of that id; raises `ApiError` when there is none or the keys cannot be read."""
        if key_id is None:
            raise _refused("invalid_admin_token", "the token is not good here: it does not name its key (kid)")
        keys = self._keys
        age_s = self._clock.monotonic() - keys.read_at if keys else KEYS_FOR_S
        if keys is None or age_s >= KEYS_FOR_S or (key_id not in keys.by_id and age_s >= UNKNOWN_KEY_S):
            is_kept = keys is not None and age_s < KEYS_KEPT_S and key_id in keys.by_id
            keys = await self._read() or (keys if is_kept else None)
        if keys is None:
            problem = f"the identity provider {self._rules.issuer} does not answer as it should"
            message = f"{problem}; named tokens are good meanwhile"
            headers = {"Retry-After": f"{REST_S:.0f}"}
            raise ApiError(503, "identity_provider_unavailable", message, headers=headers)
        if key_id not in keys.by_id:
            raise _refused("invalid_admin_token", "the token is not good here: its key is none of the issuer's")
        return keys.by_id[key_id]

    async def _read(self) -> _Keys | None:
        """Read the keys, once for all waiting requests; `None` when that fails or failed within `REST_S`."""
        if self._reading is None or self._reading.done():
            if self._clock.monotonic() < self._rests_until:
                return None
            self._reading = asyncio.create_task(self._read_now())
        return await asyncio.shield(self._reading)  # a request that is cancelled must not cancel it for others

    async def _read_now(self) -> _Keys | None:
        try:
            async with asyncio.timeout(LONGEST_S):
                loop = asyncio.get_running_loop()
                keys = await loop.run_in_executor(self._thread, _keys_of, self._rules.issuer)
        except (OSError, HTTPException, ValueError, KeyError, TypeError, AttributeError, jwt.PyJWTError) as error:
            reason = str(error)[:_LOGGED_CHARACTERS] or type(error).__name__
            _log.warning("the identity provider %s cannot be used: %s", self._rules.issuer, reason)
            self._rests_until = self._clock.monotonic() + REST_S
            return None
        self._keys = _Keys(keys, self._clock.monotonic())
        return self._keys

    def _known(self, claims: Mapping[str, Any]) -> Caller:
        email = None if claims.get("email_verified") in (False, "false") else claims.get("email")
        name = str(email or claims.get("preferred_username") or claims["sub"])
        if not name.isprintable():  # otherwise it could forge a line of a log or of the audit
            raise _refused("invalid_admin_token", "the token is not good here: its name has unprintable characters")
        stated = claims.get(self._rules.claim)
        values = stated if isinstance(stated, list) else str(stated or "").split()
        roles = [self._rules.roles[value] for value in values if isinstance(value, str) and value in self._rules.roles]
        if not roles:
            message = f"{name} has no role here: no value of the claim {self._rules.claim!r} maps to one"
            raise ApiError(403, "no_role", message, param="Authorization")
        return Caller(name[:256], max(roles, key=tuple(Role).index), float(claims["exp"]))


def _keys_of(issuer: str) -> dict[str, jwt.PyJWK]:
    """Return the keys that `issuer` signs with, by its discovery. Blocks."""
    document = _page(issuer.rstrip("/") + "/.well-known/openid-configuration")
    if document["issuer"] != issuer:
        raise ValueError(f"it calls itself {str(document['issuer'])[:_LOGGED_CHARACTERS]}")
    keys = jwt.PyJWKSet.from_dict(_page(str(document["jwks_uri"]))).keys
    return {str(key.key_id): key for key in keys if key.key_id and key.public_key_use in {"sig", None}}


def _algorithms_of(key: jwt.PyJWK) -> list[str]:
    """Return the algorithms of `key`: its own, or all for RSA, whose keys need not name one."""
    algorithms = RSA_ALGORITHMS if key.key_type == "RSA" else (key.algorithm_name,)
    return [name for name in algorithms if name in ALGORITHMS]


def _page(url: str) -> Any:
    if urlsplit(url).scheme not in {"http", "https"}:
        raise ValueError(f"{url[:_LOGGED_CHARACTERS]} is no address of a web server")
    with open_url(url, timeout=TIMEOUT_S) as answer:
        return json.loads(answer.read(LARGEST_PAGE_BYTES))


def _refused(code: str, message: str) -> ApiError:
    return ApiError(401, code, message, param="Authorization", headers={"WWW-Authenticate": "Bearer"})
