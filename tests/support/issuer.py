"""An OpenID Connect provider over HTTP, with discovery and keys; it counts what it is asked."""

import json
import time
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from tests.support.http_server import Asked, HttpServer


class Issuer(HttpServer):
    """Signs tokens, and serves its discovery document and its keys."""

    def __init__(self) -> None:
        self.asked = 0
        self.keys = {"first": rsa.generate_private_key(public_exponent=65537, key_size=2048)}
        super().__init__(self._answer)

    def _answer(self, asked: Asked) -> tuple[int, bytes]:
        self.asked += 1
        pages = {
            "/.well-known/openid-configuration": {"issuer": self.url, "jwks_uri": f"{self.url}/keys"},
            "/keys": {"keys": [self.public(kid) for kid in self.keys]},
        }
        return 200, json.dumps(pages[asked.path]).encode()

    def public(self, kid: str) -> dict[str, Any]:
        return {**json.loads(RSAAlgorithm.to_jwk(self.keys[kid].public_key())), "kid": kid, "use": "sig"}

    def token(self, kid: str = "first", key: Any = None, algorithm: str = "RS256", **claims: Any) -> str:
        stated = {
            "iss": self.url, "aud": "specpilot", "sub": "u1", "email": "ada@example.com", "groups": ["sre"],
            "exp": time.time() + 600, **claims,
        }  # fmt: skip
        present = {name: value for name, value in stated.items() if value is not None}
        return jwt.encode(present, key or self.keys[kid], algorithm=algorithm, headers={"kid": kid})
