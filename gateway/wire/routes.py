"""The relayed routes, and those that differ from the others in more than their name. Pure."""

import re
from typing import Final
from urllib.parse import parse_qsl

from specpilot.gateway.wire.lax_values import read_bool

RESPONSES: Final = "/v1/responses"
INVOCATIONS: Final = "/invocations"
RESPONSE: Final = "/v1/responses/{id}"
RESPONSE_CANCEL: Final = "/v1/responses/{id}/cancel"
STORED: Final = frozenset((RESPONSE, RESPONSE_CANCEL))
"""Routes to a response that an engine keeps: no body, no model, no charge (the usage was counted when it was made)."""

UNCHARGED: Final = STORED | {"/tokenize", "/detokenize", "/v1/messages/count_tokens"}
"""Routes on which no model runs, so that no tokens are charged."""

ANTHROPIC: Final = frozenset(("/v1/messages", "/v1/messages/count_tokens"))
"""Routes of Anthropic's API, whose errors have their own shape."""

MARKED: Final = frozenset(("/v1/chat/completions", "/v1/completions", RESPONSES, "/v1/messages", INVOCATIONS))
"""The routes whose bodies may carry `vllm_xargs` in vLLM. SageMaker's `/invocations` takes a chat or a completion."""

PROXIED: Final = MARKED | {
    "/v1/embeddings",
    *("/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank"),
    *("/tokenize", "/detokenize"),
    *("/classify", "/pooling", "/v1/messages/count_tokens"),
    *STORED,
}
"""Every relayed route. No other path reaches an engine."""

STREAMED: Final = MARKED | STORED
"""The routes whose answer may be an event stream. On any other, vLLM ignores a field `stream`."""

STREAMED_WITH_USAGE: Final = frozenset(("/v1/chat/completions", "/v1/completions", INVOCATIONS))
"""The routes whose streams state their usage only if `stream_options.include_usage` requests it."""

_QUERY: Final = rb"(?:[^\x00- #%\x7f-\xff]|%[2-7][0-9A-Fa-f]){0,1024}"  # no control character, encoded or not
_STORED: Final = re.compile(rb"/v1/responses/[A-Za-z0-9_-]{1,128}(/cancel)?(?:\?%b)?" % _QUERY)
_SLASHES: Final = re.compile(rb"//+")
_ID: Final = re.compile(r"/v1/responses/([A-Za-z0-9_-]+)")


def tidied(target: bytes) -> bytes:
    """Return a request target without repeated or final slashes in its path. Some clients add them."""
    path, mark, query = target.partition(b"?")
    tidy = _SLASHES.sub(b"/", path)
    return (tidy.rstrip(b"/") or b"/") + mark + query


def stored_route(target: bytes) -> str | None:
    """Return the route of `STORED` for the request target `target` (path and query); `None` for other targets."""
    match = _STORED.fullmatch(target)
    if match is None:
        return None
    return RESPONSE if match[1] is None else RESPONSE_CANCEL


def response_id(target: str) -> str:
    """Return the identifier in a target of `stored_route`."""
    match = _ID.match(target)
    assert match is not None
    return match[1]


def asks_stream(target: str) -> bool:
    """Whether the query of `target` requests an event stream. The last of several values counts, as in vLLM."""
    stated = [value for name, value in parse_qsl(target.partition("?")[2]) if name == "stream"]
    return bool(stated) and read_bool(stated[-1]) is True


def method_of(path: str) -> str:
    """Return the method of the relayed route `path`."""
    return "GET" if path == RESPONSE else "POST"
