"""An OpenID Connect provider over HTTP, with discovery and keys; it counts what it is asked."""

import json
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm


class Issuer:
    """Signs tokens, and serves its discovery document and its keys."""

    def __init__(self) -> None:
        self.asked = 0
        self.keys = {"first": rsa.generate_private_key(public_exponent=65537, key_size=2048)}
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.asked += 1
                pages = {
                    "/.well-known/openid-configuration": {"issuer": issuer.url, "jwks_uri": f"{issuer.url}/keys"},
                    "/keys": {"keys": [issuer.public(kid) for kid in issuer.keys]},
                }
                body = json.dumps(pages[self.path]).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        Thread(target=self.server.serve_forever, daemon=True).start()

    def public(self, kid: str) -> dict[str, Any]:
        return {**json.loads(RSAAlgorithm.to_jwk(self.keys[kid].public_key())), "kid": kid, "use": "sig"}

    def token(self, kid: str = "first", key: Any = None, algorithm: str = "RS256", **claims: Any) -> str:
        stated = {
            "iss": self.url, "aud": "specpilot", "sub": "u1", "email": "ada@example.com", "groups": ["sre"],
            "exp": time.time() + 600, **claims,
        }  # fmt: skip
        present = {name: value for name, value in stated.items() if value is not None}
        return jwt.encode(present, key or self.keys[kid], algorithm=algorithm, headers={"kid": kid})

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
