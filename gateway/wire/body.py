"""A request's body: the few facts that the gateway reads, and the few fields that it sets. Pure.

Law: the client's bytes reach the engine unchanged. The body, or the outline of a large one (`gateway.wire.outline`), is
parsed once, for reading only; it is never serialised again.

`amend` inserts the gateway's decisions into the bytes themselves: `vllm_xargs.traffic_class` and `vllm_xargs.k_max`,
`priority`, for a stream `stream_options.include_usage`, and `model` if another model is to serve.

1. A field that the body lacks becomes a first member of the body.
2. An object that is present is merged into; its own values of these members are replaced.
3. When a body states a field twice, both are amended, so it does not matter which one the engine uses.
4. A `vllm_xargs` that is neither object nor null is left for the engine to reject.

The engine, not the gateway, validates `messages` and the like.
"""

import json
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

import orjson

from specpilot.gateway.wire.errors import BodyTooComplexError, InvalidFieldError, InvalidJsonError
from specpilot.gateway.wire.outline import BodyOutline
from specpilot.gateway.wire.routes import FORMS, INVOCATIONS, RESPONSES, STORED
from specpilot.policy.types import is_class_name

CHARS_PER_TOKEN: Final = 4
"""Bytes of text that count as one token. A rough measure: it ranks engines, and stands in for unstated usage."""

UNSAID_OUTPUT_TOKENS: Final = 256
"""The output tokens of a request that states no limit."""

PROMPT_TOKENS_COUNTED: Final = 8192
"""The most tokens of a prompt that count as work of an engine. In a longer prompt a cached prefix is likely."""

OUTPUT_TOKENS_COUNTED: Final = 4096
"""The most output tokens that count as work. Limits are mostly set far above the actual length."""

WALKED_MEMBERS: Final = 512
"""Members of one object that are walked to find one of them, 3 us each. OpenAI's largest request has some 40."""

WALKED_STRINGS: Final = 60_000
"""Strings of a large body that such a walk may skip. The other bounds allow 25,000 members, of two strings each."""

COPY_LIMIT_BYTES: Final = 65_536
"""Bytes up to which a body is copied into one buffer with its new fields. A larger one is sent in slices."""

XARGS: Final = "vllm_xargs"
CLASS_FIELD: Final = "traffic_class"
CEILING_FIELD: Final = "k_max"
MODEL: Final = "model"
PRIORITY: Final = "priority"
STREAM_OPTIONS: Final = "stream_options"
INCLUDE_USAGE: Final = "include_usage"
REQUEST_ID: Final = "request_id"
PREVIOUS: Final = "previous_response_id"
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_PROMPT_FIELDS: Final[tuple[str, ...]] = ("messages", "prompt", "input", "system", "instructions")
_USAGE: Final = {INCLUDE_USAGE: b"true"}
_USUAL_LIMIT_FIELDS: Final[tuple[str, ...]] = ("max_tokens",)
_CHAT_LIMIT_FIELDS: Final[tuple[str, ...]] = ("max_completion_tokens", "max_tokens")
_LIMIT_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "/v1/chat/completions": _CHAT_LIMIT_FIELDS,
    INVOCATIONS: _CHAT_LIMIT_FIELDS,
    RESPONSES: ("max_output_tokens",),
    **dict.fromkeys(FORMS, ("max_completion_tokens",)),
}
"""The fields that limit the length of the answer, by route; the first present one counts.

vLLM's request models honour these. A field that an engine ignores limits nothing.
"""

_WALKED: Final = f"with `{XARGS}`, `{STREAM_OPTIONS}`, `{PRIORITY}` or a model to set"


# Possessive: a pattern that can backtrack stores a hundred bytes for every escape that it passes.
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_SPACE: Final = re.compile(rb"[ \t\r\n]*")
_SCALAR: Final = re.compile(rb"[^,\]}\s]+")
_NOT_BRACKET: Final = re.compile(rb'[^"{}\[\]]*+(?:' + _STRING.pattern + rb'[^"{}\[\]]*+)*+', re.DOTALL)


class RequestFacts:
    """The gateway's view of a request. `body` is the parsed JSON, for reading only.

    `work_tokens` estimates the work for an engine: prompt plus output, in tokens, each up to a bound beyond which more
    says nothing about the work. `charged_tokens` is the same without the bounds, `prompt_tokens` its part for the
    prompt. `max_tokens` is the largest number of output tokens that the request allows; `None` when it states none.
    """

    __slots__ = (
        "_prompt_chars", "body", "charged_tokens", "max_tokens", "model", "path", "prompt_tokens", "stream",
        "work_tokens",
    )  # fmt: skip

    def __init__(  # noqa: PLR0913 - a plain record, and no dataclass: mypyc would leave its initialiser interpreted
        self, path: str, model: str, body: dict[str, Any], prompt_tokens: int, max_tokens: int | None, *, stream: bool
    ) -> None:
        output_tokens = UNSAID_OUTPUT_TOKENS if max_tokens is None else max(0, max_tokens)
        self.work_tokens = min(prompt_tokens, PROMPT_TOKENS_COUNTED) + min(output_tokens, OUTPUT_TOKENS_COUNTED)
        self.charged_tokens = prompt_tokens + output_tokens
        self.prompt_tokens = prompt_tokens
        self.path = path
        self.model = model
        self.body = body
        self.max_tokens = max_tokens
        self.stream = stream
        self._prompt_chars: int | None = None  # counted once, for any number of match rules

    @property
    def has_tools(self) -> bool:
        """Whether the request names tools."""
        return bool(self.body.get("tools"))

    @property
    def has_response_format(self) -> bool:
        """Whether the request constrains the form of its answer."""
        return bool(self.body.get("response_format") or self.body.get("structured_outputs"))

    @property
    def asks_usage(self) -> bool:
        """Whether the client asked for the usage of its stream."""
        options = self.body.get(STREAM_OPTIONS)
        return isinstance(options, dict) and options.get(INCLUDE_USAGE) is True

    @property
    def prompt_chars(self) -> int:
        """The length of the prompt's text in characters. Images, audio and token ids do not count."""
        chars = self._prompt_chars
        if chars is None:
            body = self.body
            chars = 0
            for name in _PROMPT_FIELDS:
                chars += _text_chars(body.get(name))
            self._prompt_chars = chars
        return chars

    @property
    def previous_response(self) -> str | None:
        """The identifier of the response that the request continues or reads."""
        if self.path != RESPONSES and self.path not in STORED:
            return None
        found = self.body.get(PREVIOUS)
        return found if isinstance(found, str) else None

    @property
    def is_endless(self) -> bool:
        """Whether the request states no limit and runs on after its answer, so that its usage is never reported."""
        return self.path == RESPONSES and self.max_tokens is None and bool(self.body.get("background"))

    @property
    def asked_class(self) -> str | None:
        """The traffic class in the body's `metadata.traffic_class`."""
        metadata = self.body.get("metadata")
        asked = metadata.get(CLASS_FIELD) if isinstance(metadata, dict) else None
        return asked if isinstance(asked, str) else None

    @property
    def service_tier(self) -> str | None:
        """OpenAI's `service_tier`, which may happen to name a class."""
        tier = self.body.get("service_tier")
        return tier if isinstance(tier, str) else None


def read_facts(path: str, body: bytes, size: int | None = None) -> RequestFacts:
    """Return the facts of `body`, which may be the outline of a body of `size` bytes.

    Raises `InvalidJsonError` and `InvalidFieldError`.
    """
    text = body if body[:1] != _BYTE_ORDER_MARK[:1] else body.removeprefix(_BYTE_ORDER_MARK)  # as vLLM reads it
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidJsonError(f"the request body is not valid JSON: {error}; send one JSON object") from error
    if type(found) is not dict:
        raise InvalidJsonError('the request body must be a JSON object, such as {"model": ...}')
    model = found.get("model")
    if type(model) is not str or not model:
        fault = "is missing" if model is None else "must be a non-empty string"
        raise InvalidFieldError(f"model {fault}; name one of those that GET /v1/models lists", param="model")
    stream = found.get("stream")
    if stream is not None and type(stream) is not bool:
        raise InvalidFieldError("stream must be true or false", param="stream")
    prompt_tokens = (len(body) if size is None else size) // CHARS_PER_TOKEN
    return RequestFacts(path, model, found, prompt_tokens, _max_tokens(path, found), stream=stream is True)


def in_utf_8(body: bytes) -> bytes | None:
    """Return a body in UTF-16 or UTF-32 in UTF-8; `None` for any other. The first bytes decide, as in vLLM."""
    coding = json.detect_encoding(body)
    if coding.startswith("utf-8"):
        return None
    try:
        return body.decode(coding).encode()
    except UnicodeError:
        return None


def may_repeat_model(text: bytes) -> bool:
    """Whether `model` may occur more than once in `text`, a body or its outline, with or without escapes."""
    return text.count(b'"model"') != 1 or b"\\u00" in text


class Amendments:
    """The gateway's decisions about a body. There are few different values, so each is made once (`amendments`).

    `traffic_class`, `priority`, `k_max` and `model` are `None` if they are not set. A client's own `priority` becomes 0
    even then, because it orders the queue of all clients. `asks_usage`: request the usage of a stream.
    """

    __slots__ = ("asks_usage", "has_priority", "model", "priority", "usual_members", "xargs")

    def __init__(
        self, traffic_class: str | None, priority: int | None, k_max: int | None, model: str | None, *, asks_usage: bool
    ) -> None:
        if traffic_class is not None and not is_class_name(traffic_class):
            raise ValueError(f"{traffic_class!r} is not a class name")
        self.xargs: dict[str, bytes] = {}
        if traffic_class is not None:
            self.xargs[CLASS_FIELD] = b'"%s"' % traffic_class.encode()
        if k_max is not None:
            self.xargs[CEILING_FIELD] = b"%d" % k_max
        self.model = None if model is None else orjson.dumps(model)
        self.has_priority = priority is not None and priority != 0
        self.priority = b"%d" % (priority or 0)
        self.asks_usage = asks_usage
        self.usual_members = self.first_members({})

    def first_members(self, body: dict[str, Any]) -> bytes:
        """Return the members to insert into a body that was parsed as `body`."""
        text = b""
        if self.xargs and XARGS not in body:
            text += b'"%s":{%s},' % (XARGS.encode(), _text_of(self.xargs))
        if self.has_priority and PRIORITY not in body:
            text += b'"%s":%s,' % (PRIORITY.encode(), self.priority)
        if self.asks_usage and STREAM_OPTIONS not in body:
            text += b'"%s":{%s},' % (STREAM_OPTIONS.encode(), _text_of(_USAGE))
        return text


@lru_cache(maxsize=1024)
def amendments(
    traffic_class: str | None,
    priority: int | None,
    asks_usage: bool,  # noqa: FBT001 - cached
    k_max: int | None = None,
    model: str | None = None,
) -> Amendments:
    """Return the amendments for these decisions, the same object for equal ones."""
    return Amendments(traffic_class, priority, k_max, model, asks_usage=asks_usage)


def amend(
    body: tuple[bytes, ...], facts: RequestFacts, wanted: Amendments, outline: BodyOutline | None = None
) -> tuple[bytes | memoryview, ...]:
    """Return `body` with the amendments `wanted`, as buffers to send one after another. Forms stay unchanged.

    `body` is in one part, or has an `outline`. `facts` must be the result of `read_facts` for it or its outline. Raises
    `BodyTooComplexError`.
    """
    if facts.path in FORMS or facts.path in STORED:
        return body
    found = facts.body
    text = body[0] if outline is None else outline.finish()
    opened = 0 if text[:1] == b"{" else text.index(b"{")
    start = opened + 1 if outline is None else outline.place(opened + 1)
    if XARGS not in found and PRIORITY not in found and STREAM_OPTIONS not in found and wanted.model is None:
        return _spliced(body, [(start, start, wanted.usual_members)])  # only case 1, the frequent one
    added = wanted.first_members(found)
    has_xargs = bool(wanted.xargs) and XARGS in found
    has_options = wanted.asks_usage and STREAM_OPTIONS in found
    edits: list[tuple[int, int, bytes]] = [(start, start, added)] if added else []
    if not (has_xargs or has_options or PRIORITY in found or wanted.model is not None):
        return _spliced(body, edits)
    if outline is None:
        return _spliced(body, edits + _changes(text, opened, wanted))
    if outline.strings > WALKED_STRINGS:
        raise BodyTooComplexError(f"{_WALKED} at most {WALKED_STRINGS} strings can be read; send fewer")
    for begin, end, new in _changes(text, opened, wanted):
        edits.append((outline.place(begin), outline.place(end), new))
    return _spliced(body, edits)


def with_request_id(body: Sequence[bytes | memoryview], identifier: str) -> tuple[bytes | memoryview, ...]:
    """Return `body` with `identifier` in place of its `request_id`, which is null."""
    text = b"".join(body)
    new = b'"%s"' % identifier.encode()
    found = [(begin, end, new) for key, begin, end in _members(text, text.index(b"{")) if key == REQUEST_ID]
    return _spliced((text,), found)


def _changes(text: bytes, opened: int, wanted: Amendments) -> list[tuple[int, int, bytes]]:
    """Return the replacements within the object at `opened`, of members that it has (cases 2 to 4)."""
    changed: list[tuple[int, int, bytes]] = []
    for key, begin, end in _members(text, opened):
        if key == XARGS and wanted.xargs:
            changed += _merged(text, begin, end, wanted.xargs)
        elif key == STREAM_OPTIONS and wanted.asks_usage:
            changed += _merged(text, begin, end, _USAGE)
        elif key == PRIORITY:
            changed.append((begin, end, wanted.priority))
        elif key == MODEL and wanted.model is not None:
            changed.append((begin, end, wanted.model))
    return changed


def _text_of(members: dict[str, bytes]) -> bytes:
    """Return `members` (names to JSON values) as the text between the braces of an object."""
    return b",".join([b'"%s":%s' % (name.encode(), value) for name, value in members.items()])


def _merged(body: bytes, start: int, end: int, wanted: dict[str, bytes]) -> list[tuple[int, int, bytes]]:
    """Return the edits that set `wanted` in the object or null between `start` and `end`; none for other values."""
    if body[start:end] == b"null":
        return [(start, end, b"{" + _text_of(wanted) + b"}")]
    if body[start : start + 1] != b"{":
        return []
    members = list(_members(body, start))
    replaced = [(begin, end, wanted[key]) for key, begin, end in members if key in wanted]
    named = {key for key, _, _ in members}
    added = {name: value for name, value in wanted.items() if name not in named}
    if not added:
        return replaced
    return [(start + 1, start + 1, _text_of(added) + (b"," if members else b"")), *replaced]


def _spliced(body: tuple[bytes, ...], edits: list[tuple[int, int, bytes]]) -> tuple[bytes | memoryview, ...]:
    """Return `body` with each of `edits` (start, end, new text) applied. Edits are sorted and do not overlap."""
    first = body[0]
    if len(body) == 1 and len(first) <= COPY_LIMIT_BYTES:
        if len(edits) == 1:  # most requests have no more than what is added to them
            start, end, text = edits[0]
            return (first[:start] + text + first[end:],)
        copied: list[bytes] = []
        position = 0
        for start, end, text in edits:
            copied += (first[position:start], text)
            position = end
        copied.append(first[position:])
        return (b"".join(copied),)
    parts: list[bytes | memoryview] = []
    index = begin = position = 0  # the current part, its offset in the body, the offset up to which all is done
    size = sum(map(len, body))
    for start, end, text in (*edits, (size, size, b"")):
        while position < end or position < start:
            part = body[index]
            stop = begin + len(part)
            upto = min(stop, start if position < start else end)
            if position < start:
                parts.append(memoryview(part)[position - begin : upto - begin])
            position = upto
            if position == stop:
                begin = stop
                index += 1
        if text:
            parts.append(text)
    return tuple(parts)


def _members(body: bytes, start: int) -> Iterator[tuple[str, int, int]]:
    """Yield key, start and end of value of each member of the object that begins at `start`.

    Only for text that a JSON parser has accepted: it finds the structure and validates nothing.
    """
    position = _skip(body, start + 1)
    count = 0
    while body[position] != ord("}"):
        count += 1
        if count > WALKED_MEMBERS:
            message = f"{_WALKED} at most {WALKED_MEMBERS} members of an object can be read; send fewer"
            raise BodyTooComplexError(message)
        name = _STRING.match(body, position)
        assert name is not None
        key: str = orjson.loads(name[0])
        begin = _skip(body, _skip(body, name.end()) + 1)  # past the colon
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


def _max_tokens(path: str, body: dict[str, Any]) -> int | None:
    names = _LIMIT_FIELDS.get(path, _USUAL_LIMIT_FIELDS)
    if path == INVOCATIONS and ("messages" not in body or "prompt" in body or "prompt_embeds" in body):
        names = _USUAL_LIMIT_FIELDS  # vLLM may read it as a completion
    for name in names:
        value = body.get(name)
        if type(value) is int:
            return value
    return None


def _text_chars(value: Any) -> int:
    total = 0
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            total += len(item)
        elif isinstance(item, list):
            for part in item:
                if type(part) is not str and type(part) is not dict and type(part) is not list:
                    break  # token ids, which may be many; no API mixes them with text
                stack.append(part)
        elif isinstance(item, dict):
            stack.append(item.get("content"))
            stack.append(item.get("text"))
    return total
