"""Callers whom an OpenID Connect provider knows: its signed tokens in, names and roles out.

The provider's keys are found by discovery (`/.well-known/openid-configuration`) and kept for some minutes. A token that
is signed with a key that is not known yet makes them be read again, every half minute at most. Checked are the
signature (asymmetric algorithms only), the issuer, the audience and the times; the role is the highest that the values
of one claim stand for. Needs PyJWT with `cryptography`, the extra `oidc`.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any
from urllib.request import urlopen

import jwt

from specpilot.controller.admin.access import Caller
from specpilot.controller.admin.problems import ApiError
from specpilot.policy.access import Role

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
TIMEOUT_S = 3.0
LEEWAY_S = 30
KEYS_FOR_S = 300
_LOGGED_CHARACTERS = 200
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OidcRules:
    """What is asked of a token: its issuer and audience, and which value of `claim` stands for which role."""

    issuer: str
    audience: str
    claim: str
    roles: Mapping[str, Role]


class OidcProvider:
    """An `IdentityProvider` over one issuer. Used from several threads."""

    def __init__(self, rules: OidcRules) -> None:
        self._rules = rules
        self._lock = Lock()
        self._keys: jwt.PyJWKClient | None = None

    def caller(self, token: str) -> Caller | None:
        """Return whose `token` it is by the issuer's keys; `None` for what is no JSON Web Token.

        Raises the refusal of a token that is one, but expired, forged, or for others.
        """
        if token.count(".") != 2:  # noqa: PLR2004 - head, claims, signature
            return None
        try:
            key = self._key_client().get_signing_key_from_jwt(token).key
            claims = jwt.decode(
                token, key, algorithms=list(ALGORITHMS), issuer=self._rules.issuer, audience=self._rules.audience,
                leeway=LEEWAY_S, options={"require": ["exp", "iss", "aud", "sub"]},
            )  # fmt: skip
        except jwt.ExpiredSignatureError as error:
            raise _refused("token_expired", "the token has expired; sign in again") from error
        except jwt.PyJWKClientConnectionError as error:
            raise _unreachable(self._rules.issuer, error) from error
        except jwt.PyJWTError as error:
            raise _refused("invalid_admin_token", f"the token is not good here: {error}") from error
        except (OSError, ValueError, KeyError) as error:
            raise _unreachable(self._rules.issuer, error) from error
        return self._known(claims)

    def _key_client(self) -> jwt.PyJWKClient:
        with self._lock:
            if self._keys is None:
                place = self._rules.issuer.rstrip("/") + "/.well-known/openid-configuration"
                with urlopen(place, timeout=TIMEOUT_S) as answer:  # noqa: S310 - the operator's own setting
                    found = json.loads(answer.read())
                if found["issuer"] != self._rules.issuer:
                    raise ValueError(f"it calls itself {str(found['issuer'])[:_LOGGED_CHARACTERS]}")
                self._keys = jwt.PyJWKClient(str(found["jwks_uri"]), lifespan=KEYS_FOR_S, timeout=TIMEOUT_S)
            return self._keys

    def _known(self, claims: Mapping[str, Any]) -> Caller:
        name = str(claims.get("email") or claims.get("preferred_username") or claims["sub"])
        stated = claims.get(self._rules.claim)
        values = stated if isinstance(stated, list) else str(stated or "").split()
        roles = [self._rules.roles[value] for value in values if isinstance(value, str) and value in self._rules.roles]
        if not roles:
            message = f"{name} has no role here: no value of the claim {self._rules.claim!r} stands for one"
            raise ApiError(403, "role_too_low", message, param="Authorization")
        return Caller(name[:256], max(roles, key=tuple(Role).index), float(claims["exp"]))


def _refused(code: str, message: str) -> ApiError:
    return ApiError(401, code, message, param="Authorization", headers={"WWW-Authenticate": "Bearer"})


def _unreachable(issuer: str, error: Exception) -> ApiError:
    _log.warning("the identity provider %s cannot be used: %s", issuer, str(error)[:_LOGGED_CHARACTERS])
    message = f"the identity provider {issuer} does not answer as it should; named tokens are good meanwhile"
    return ApiError(503, "identity_provider_unavailable", message, headers={"Retry-After": "5"})
