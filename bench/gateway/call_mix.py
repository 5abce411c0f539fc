"""A random mix of all kinds of requests to a gateway.

A seed determines the draws, so that two runs send the same requests. Each request has a number of its own.
"""

import json
import random
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

from specpilot.bench.gateway.canned_engine import MODEL
from specpilot.bench.gateway.judged_call import LEFT, OK, Call, Verdict, post

CHAT = "/v1/chat/completions"
OTHER_ROUTES = (
    *("/v1/completions", "/v1/responses", "/v1/messages", "/invocations", "/v1/embeddings", "/score", "/v1/score"),
    *("/rerank", "/v1/rerank", "/v2/rerank", "/tokenize", "/detokenize"),
)
LOCAL_ROUTES = {
    "/v1/models": b'"canned"',
    f"/v1/models/{MODEL}": b'"canned"',
    "/health": b'"ok"',
    "/ping": b'"ready"',
    "/ready": b'"ready"',
    "/metrics": b"specpilot_gateway_requests_total",
    "/admin/config": b'"engines"',
}
LEAVING = ("head", "body", "wait", "stream")
FREE_KEY, LIMITED_KEY = "sk-free", "sk-limited"
KEYS = [
    {"key_id": "free", "key": FREE_KEY},
    {"key_id": "limited", "key": LIMITED_KEY, "requests_per_minute": 60, "tokens_per_minute": 30_000},
]
LARGE_BYTES = 1_000_000
TURNS = 32
TURN_CHARS = 1100
_HUGE_BYTES = 100_000_000
_BROKEN = frozenset((Verdict("broken", "stream_broken"),))

WEIGHTS: Mapping[str, int] = {
    "json": 14, "stream": 8, "paced": 6, "large": 1, "conversation": 4, "other": 12, "local": 8, "limited": 8,
    "stalled": 2, "leaving": 10, "refused": 8, "status": 3, "closed": 1, "broken": 3,
}  # fmt: skip
"""Weights of kinds. `limited` exceeds its key's limits half of the time, `stalled` stops reading for a while, `leaving`
closes the connection in a phase of `LEAVING`, `refused` has a fault of the client; the last three have one of an
engine."""


class Mix:
    """Draws calls. `admin_token` is for `/admin/config`."""

    def __init__(self, seed: int, admin_token: str) -> None:
        self._rng = random.Random(seed)  # noqa: S311 - a reproducible load
        self._numbers = (f"bench-{seed}-{at}" for at in count())
        self._admin_token = admin_token
        self._makers: dict[str, Callable[[str], Call]] = {
            "json": lambda kind: self._chat(kind, {}),
            "stream": lambda kind: self._chat(kind, {"events": 30}),
            "paced": lambda kind: self._chat(kind, {"events": 40, "pause_s": 0.02}),
            "large": lambda kind: self._chat(kind, {}, prompt="x" * LARGE_BYTES),
            "conversation": lambda kind: self._chat(kind, {}, turns=TURNS),
            "stalled": lambda kind: self._chat(kind, {"events": 100, "padding": 20_000}, stalls=True),
            "limited": self._limited,
            "other": self._other,
            "local": self._local,
            "leaving": lambda _: self.leaving(self._rng.choice(LEAVING)),
            "refused": self._refused,
            "status": self._status,
            "closed": lambda kind: self._chat(kind, {"breaks": 0}, expected=_refusals("bad_engine_response")),
            "broken": lambda kind: self._chat(kind, {"events": 20, "pause_s": 0.005, "breaks": 5}, expected=_BROKEN),
        }  # fmt: skip

    def draw(self) -> Call:
        """Return the next request."""
        [kind] = self._rng.choices(tuple(WEIGHTS), tuple(WEIGHTS.values()))
        return self.of(kind)

    def of(self, kind: str) -> Call:
        """Return a request of `kind`."""
        return self._makers[kind](kind)

    def leaving(self, phase: str) -> Call:
        """Return a request whose client leaves in `phase`."""
        canned = {"events": 200, "pause_s": 0.02} if phase == "stream" else {"wait_s": 5.0}
        return self._chat("leaving", canned, prompt="x" * 20_000, leaves=phase, expected=frozenset((LEFT,)))

    def _chat(
        self, kind: str, canned: dict[str, Any], *, prompt: str = "", turns: int = 1, key: str = FREE_KEY, **more: Any
    ) -> Call:
        number = next(self._numbers)
        messages = [{"role": "user", "content": f"{number} {turn} {prompt}"} for turn in range(turns)]
        if turns > 1:
            messages = [item | {"content": item["content"].ljust(TURN_CHARS, "y")} for item in messages]
        body = {"model": MODEL, "messages": messages, "max_tokens": 60, "stream": "events" in canned}
        if self._rng.random() < 0.3:  # noqa: PLR2004 - three of ten have a session
            body["user"] = f"user-{self._rng.randrange(50)}"
        return post(kind, number, CHAT, json.dumps(body).encode(), canned, key, **more)

    def _limited(self, kind: str) -> Call:
        return self._chat(kind, {}, key=LIMITED_KEY, expected=_refusals("rate_limit_exceeded") | {OK})

    def _other(self, kind: str) -> Call:
        body = {
            "model": MODEL, "input": "a", "prompt": "a", "query": "a", "documents": ["b"], "text_1": "a", "text_2": "b",
            "messages": [{"role": "user", "content": "a"}], "max_tokens": 60,
        }  # fmt: skip
        path = self._rng.choice(OTHER_ROUTES)
        return post(kind, next(self._numbers), path, json.dumps(body).encode(), {}, FREE_KEY)

    def _local(self, kind: str) -> Call:
        path, marker = self._rng.choice(tuple(LOCAL_ROUTES.items()))
        key = self._admin_token if path.startswith("/admin") else FREE_KEY
        head = f"GET {path} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {key}\r\n\r\n"
        return Call(kind, head.encode(), b"", next(self._numbers), marker=marker)

    def _refused(self, kind: str) -> Call:
        body = json.dumps({"model": MODEL, "messages": []}).encode()
        code, path, body, key = self._rng.choice((
            ("model_not_found", CHAT, b'{"model": "another"}', FREE_KEY),
            ("invalid_json", CHAT, b'{"model": ', FREE_KEY),
            ("invalid_field", CHAT, b'{"model": 1}', FREE_KEY),
            ("invalid_api_key", CHAT, body, "sk-unknown"),
            ("route_not_found", "/speculation", body, FREE_KEY),
            ("method_not_allowed", "/v1/models", body, FREE_KEY),
            ("body_too_large", CHAT, b"", FREE_KEY),
            ("bad_request", CHAT, body, FREE_KEY),
        ))  # fmt: skip
        call = post(kind, next(self._numbers), path, body, {}, key, expected=_refusals(code))
        if code == "body_too_large":
            return _with_head(call, b"content-length: 0", b"content-length: %d" % _HUGE_BYTES)
        if code == "bad_request":
            return _with_head(call, b"host: bench", b"host: bench\r\nhost: bench")
        return call

    def _status(self, kind: str) -> Call:
        status = self._rng.choice((400, 500, 503))
        return self._chat(kind, {"status": status}, expected=_refusals(f"canned_{status}"))


def _refusals(*codes: str) -> frozenset[Verdict]:
    return frozenset(Verdict("refused", code) for code in codes)


def _with_head(call: Call, old: bytes, new: bytes) -> Call:
    return Call(call.kind, call.head.replace(old, new), call.body, call.number, expected=call.expected)
