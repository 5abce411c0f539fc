"""Relayed routes that differ from the rest in more than their name. Pure."""

import re
from typing import Final

RESPONSES: Final = "/v1/responses"
INVOCATIONS: Final = "/invocations"
RESPONSE: Final = "/v1/responses/{id}"
RESPONSE_CANCEL: Final = "/v1/responses/{id}/cancel"
STORED: Final = frozenset((RESPONSE, RESPONSE_CANCEL))
"""Routes to a response that an engine keeps: no body, no model, and what was used was counted when it was made."""

UNCHARGED: Final = STORED | {"/tokenize", "/detokenize", "/v1/messages/count_tokens"}
"""Routes on which no model runs, so that nothing counts against a key's limit on tokens."""

FORMS: Final = frozenset(("/v1/audio/transcriptions", "/v1/audio/translations"))
"""Routes whose bodies are `multipart/form-data`."""

ANTHROPIC: Final = frozenset(("/v1/messages", "/v1/messages/count_tokens"))
"""Routes of Anthropic's API, whose errors have a shape of their own."""

_STORED: Final = re.compile(rb"/v1/responses/[A-Za-z0-9_-]{1,128}(/cancel)?(?:\?[A-Za-z0-9_=&.-]{0,256})?")
_SLASHES: Final = re.compile(rb"//+")
_ID: Final = re.compile(r"/v1/responses/([A-Za-z0-9_-]+)")
_ASKS_STREAM: Final = re.compile(r"[?&]stream=(?:true|1)(?:&|$)")


def tidied(target: bytes) -> bytes:
    """Return a request target without slashes that are too many in its path: clients join base URLs and paths."""
    path, mark, query = target.partition(b"?")
    tidy = _SLASHES.sub(b"/", path)
    return (tidy.rstrip(b"/") or b"/") + mark + query


def stored_route(target: bytes) -> str | None:
    """Return which of `STORED` the request target `target` (path and query) names; `None` when it is neither."""
    found = _STORED.fullmatch(target)
    if found is None:
        return None
    return RESPONSE if found[1] is None else RESPONSE_CANCEL


def response_id(target: str) -> str:
    """Return the identifier in a target that `stored_route` knows."""
    found = _ID.match(target)
    assert found is not None
    return found[1]


def asks_stream(target: str) -> bool:
    """Whether the query of `target` asks for a stream of events."""
    return _ASKS_STREAM.search(target) is not None


def method_of(path: str) -> str:
    """Return the method of the relayed route `path`."""
    return "GET" if path == RESPONSE else "POST"
