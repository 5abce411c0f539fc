"""A request's body: the few facts the gateway needs, and the one field that it adds.

Law: the client's bytes reach the engine as they came. The body is parsed once, to look; it is never written
anew from what was parsed. `mark` splices `vllm_xargs.traffic_class` into the bytes themselves: into an
existing `vllm_xargs` object (replacing a `traffic_class` in it: the class is the server's to decide), else as
the first member of the body. When a body names `vllm_xargs` twice every one of them is marked, so that it
does not matter which the engine believes. A `vllm_xargs` that is neither object nor null is left for the
engine to refuse.

Whether `messages` and the like make sense is the engine's business. Pure.
"""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import orjson

from gateway.errors import InvalidFieldError, InvalidJsonError
from policy.types import is_class_name

XARGS = "vllm_xargs"
CLASS_FIELD = "traffic_class"
CHARS_PER_TOKEN = 4
"""A rough measure that ranks engines; nothing is billed by it."""

UNSAID_OUTPUT_TOKENS = 256
"""What a request that names no limit counts for."""

PROMPT_TOKENS_COUNTED = 8192
OUTPUT_TOKENS_COUNTED = 4096
COPY_LIMIT_BYTES = 65_536
"""Up to here a body is copied into one buffer with its field; above, it is passed on in slices."""

# Possessive: what can backtrack remembers every escape that it passed, a hundred bytes each.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_SPACE = re.compile(rb"[ \t\r\n]*")
_SCALAR = re.compile(rb"[^,\]}\s]+")
_NOT_BRACKET = re.compile(rb'(?:[^"{}\[\]]++|' + _STRING.pattern + rb")++", re.DOTALL)


class RequestFacts:
    """What the gateway knows of a request. `body` is what `orjson` made of it; read it, never write it.

    `work_tokens` estimates what the request asks of an engine: prompt plus output, in tokens. `max_tokens` is the
    largest number of output tokens that it allows; `None` when it does not say.
    """

    __slots__ = ("body", "max_tokens", "model", "path", "stream", "work_tokens")

    def __init__(  # noqa: PLR0913 - a plain record, and no dataclass: mypyc would leave its initialiser interpreted
        self, path: str, model: str, body: dict[str, Any], work_tokens: int, max_tokens: int | None, *, stream: bool
    ) -> None:
        self.path = path
        self.model = model
        self.body = body
        self.work_tokens = work_tokens
        self.max_tokens = max_tokens
        self.stream = stream

    @property
    def has_tools(self) -> bool:
        """Whether the request names tools."""
        return bool(self.body.get("tools"))

    @property
    def has_response_format(self) -> bool:
        """Whether the request binds the shape of its answer."""
        return bool(self.body.get("response_format") or self.body.get("structured_outputs"))

    @property
    def prompt_chars(self) -> int:
        """The length of the prompt's text in characters. Images, audio and token ids do not count."""
        body = self.body
        return sum(_text_chars(body.get(name)) for name in ("messages", "prompt", "input", "system", "instructions"))

    @property
    def asked_class(self) -> str | None:
        """The traffic class that the body asks for, by `metadata.traffic_class`."""
        metadata = self.body.get("metadata")
        asked = metadata.get(CLASS_FIELD) if isinstance(metadata, dict) else None
        return asked if isinstance(asked, str) else None

    @property
    def service_tier(self) -> str | None:
        """OpenAI's `service_tier`, which may happen to name a class."""
        tier = self.body.get("service_tier")
        return tier if isinstance(tier, str) else None


def read_facts(path: str, body: bytes) -> RequestFacts:
    """Return what `body` states. Raises `InvalidJsonError` and `InvalidFieldError`."""
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidJsonError(f"the request body is not valid JSON: {error}; send one JSON object") from error
    if type(found) is not dict:
        raise InvalidJsonError('the request body must be a JSON object, such as {"model": ...}')
    model = found.get("model")
    if type(model) is not str or not model:
        said = "is missing" if model is None else "must be a non-empty string"
        raise InvalidFieldError(f"model {said}; name one of those that GET /v1/models lists", param="model")
    stream = found.get("stream")
    if stream is not None and type(stream) is not bool:
        raise InvalidFieldError("stream must be true or false", param="stream")
    prompt_tokens = min(len(body) // CHARS_PER_TOKEN, PROMPT_TOKENS_COUNTED)
    max_tokens = _max_tokens(found)
    output_tokens = UNSAID_OUTPUT_TOKENS if max_tokens is None else max(0, min(max_tokens, OUTPUT_TOKENS_COUNTED))
    return RequestFacts(path, model, found, prompt_tokens + output_tokens, max_tokens, stream=stream is True)


def mark(body: bytes, facts: RequestFacts, traffic_class: str) -> Sequence[bytes | memoryview]:
    """Return `body` with `vllm_xargs.traffic_class` set to `traffic_class`, as buffers to send one after another.

    `facts` must be what `read_facts` made of `body`.
    """
    value, member, whole = _texts_of(traffic_class)
    if XARGS not in facts.body:
        start = body.index(b"{") + 1
        return _spliced(body, [(start, start, whole)])
    edits: list[tuple[int, int, bytes]] = []
    for key, start, end in _members(body, body.index(b"{")):
        if key != XARGS:
            continue
        if body[start:end] == b"null":
            edits.append((start, end, b"{" + member + b"}"))
        elif body[start : start + 1] == b"{":
            edits.extend(_edits_of(body, start, value, member))
    return _spliced(body, edits)


@lru_cache(maxsize=256)
def _texts_of(traffic_class: str) -> tuple[bytes, bytes, bytes]:
    """Return a class as a JSON value, as a member of `vllm_xargs`, and as a first member of the body."""
    if not is_class_name(traffic_class):
        raise ValueError(f"{traffic_class!r} is not a class name")
    value = b'"%s"' % traffic_class.encode()
    member = b'"%s":%s' % (CLASS_FIELD.encode(), value)
    return value, member, b'"%s":{%s},' % (XARGS.encode(), member)


def _edits_of(body: bytes, start: int, value: bytes, member: bytes) -> list[tuple[int, int, bytes]]:
    members = list(_members(body, start))
    replaced = [(begin, end, value) for key, begin, end in members if key == CLASS_FIELD]
    return replaced or [(start + 1, start + 1, member + (b"," if members else b""))]


def _spliced(body: bytes, edits: list[tuple[int, int, bytes]]) -> Sequence[bytes | memoryview]:
    source: bytes | memoryview = body if len(body) <= COPY_LIMIT_BYTES else memoryview(body)
    parts: list[bytes | memoryview] = []
    position = 0
    for start, end, text in edits:
        parts += (source[position:start], text)
        position = end
    parts.append(source[position:])
    return (b"".join(parts),) if source is body else parts


def _members(body: bytes, start: int) -> Iterator[tuple[str, int, int]]:
    """Yield key, start and end of value of each member of the object that begins at `start`.

    Only for text that a JSON parser accepted: it looks for structure and checks nothing.
    """
    position = _skip(body, start + 1)
    while body[position] != ord("}"):
        found = _STRING.match(body, position)
        assert found is not None
        key: str = orjson.loads(found[0])
        begin = _skip(body, _skip(body, found.end()) + 1)  # over the colon
        end = _value_end(body, begin)
        yield key, begin, end
        position = _skip(body, end)
        if body[position] == ord(","):
            position = _skip(body, position + 1)


def _value_end(body: bytes, position: int) -> int:
    first = body[position]
    if first not in b"{[":
        scalar = (_STRING if first == ord('"') else _SCALAR).match(body, position)
        assert scalar is not None
        return scalar.end()
    depth = 1
    position += 1
    while depth:
        char = body[position]
        if char in b"{[":
            depth += 1
            position += 1
        elif char in b"}]":
            depth -= 1
            position += 1
        else:
            other = _NOT_BRACKET.match(body, position)
            assert other is not None
            position = other.end()
    return position


def _skip(body: bytes, position: int) -> int:
    found = _SPACE.match(body, position)
    assert found is not None
    return found.end()


def _max_tokens(body: dict[str, Any]) -> int | None:
    for name in ("max_completion_tokens", "max_tokens", "max_output_tokens"):
        value = body.get(name)
        if type(value) is int:
            return value
    return None


def _text_chars(value: Any) -> int:
    total = 0
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, str):
            total += len(item)
        elif isinstance(item, list):
            left.extend(item)
        elif isinstance(item, dict):
            left.append(item.get("content"))
            left.append(item.get("text"))
    return total
