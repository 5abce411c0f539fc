"""Reads the few facts that the gateway needs from a request's body. Pure.

The body, or the outline of a large one (`gateway.wire.outline`), is parsed once, for reading only; it is never
serialised again. `gateway.wire.amendments` sets the gateway's own fields in the client's bytes.

The engine, not the gateway, validates `messages` and the like.
"""

import json
from typing import Any, Final

import orjson

from specpilot.gateway.wire.body_fields import (
    CLASS_FIELD,
    CONTINUOUS_USAGE,
    INCLUDE_USAGE,
    MODEL,
    PREVIOUS,
    STREAM_OPTIONS,
)
from specpilot.gateway.wire.errors import InvalidFieldError, InvalidJsonError
from specpilot.gateway.wire.lax_values import read_bool, read_int
from specpilot.gateway.wire.routes import INVOCATIONS, RESPONSES, STORED, STREAMED

CHARS_PER_TOKEN: Final = 4
"""Bytes of text that count as one token. A rough measure: it ranks engines, and replaces unstated usage."""

UNSAID_OUTPUT_TOKENS: Final = 256
"""The output tokens of a request that states no limit."""

PROMPT_TOKENS_COUNTED: Final = 8192
"""The most tokens of a prompt that count as work of an engine. In a longer prompt a cached prefix is likely."""

OUTPUT_TOKENS_COUNTED: Final = 4096
"""The most output tokens that count as work. Limits are mostly set far above the actual length."""

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_PROMPTS: Final[tuple[str, ...]] = ("prompt", "prompt_embeds")
"""The fields of a completion that may hold several prompts."""
_PROMPT_FIELDS: Final[tuple[str, ...]] = ("messages", "prompt", "input", "system", "instructions")
_USUAL_LIMIT_FIELDS: Final[tuple[str, ...]] = ("max_tokens",)
_CHAT_LIMIT_FIELDS: Final[tuple[str, ...]] = ("max_completion_tokens", "max_tokens")
_LIMIT_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "/v1/chat/completions": _CHAT_LIMIT_FIELDS,
    INVOCATIONS: _CHAT_LIMIT_FIELDS,
    RESPONSES: ("max_output_tokens",),
}
"""The fields that limit the length of the answer, by route; the first present one counts.

vLLM's request models honour these. A field that an engine ignores limits nothing.
"""


class RequestFacts:
    """The gateway's view of a request. `body` is the parsed JSON, for reading only.

    `model` is empty until one is chosen for a request that names none: without the field, with null or with "".

    `work_tokens` estimates the work for an engine: prompt plus output, in tokens, each up to a bound above which it is
    no evidence about the work. `charged_tokens` is the same without the bounds, `prompt_tokens` its part for the
    prompt. `max_tokens` is the largest number of output tokens that the request allows; `None` when it states none.
    """

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
    def has_one_choice(self) -> bool:
        """Whether the answer has one choice: `n` is 1, and there is one prompt."""
        prompts = 0
        for name in _PROMPTS:
            value = self.body.get(name)
            is_many = type(value) is list and len(value) > 1 and type(value[0]) is not int  # and no token ids
            prompts += 2 if is_many else value is not None
        return prompts <= 1 and read_int(self.body.get("n")) in (None, 1)

    @property
    def asks_usage(self) -> bool | None:
        """Whether the client asked for the usage of its stream; `None` if its engine will reject the options."""
        options = self.body.get(STREAM_OPTIONS)
        if options is None:
            return False
        if type(options) is not dict or read_bool(options.get(CONTINUOUS_USAGE)) is None:
            return None
        return read_bool(options.get(INCLUDE_USAGE))

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
        identifier = self.body.get(PREVIOUS)
        return identifier if isinstance(identifier, str) else None

    @property
    def is_endless(self) -> bool:
        """Whether the request states no limit and runs on after its answer, so that its usage is never reported."""
        return self.path == RESPONSES and self.max_tokens is None and read_bool(self.body.get("background")) is True

    @property
    def requested_class(self) -> str | None:
        """The traffic class in the body's `metadata.traffic_class`."""
        metadata = self.body.get("metadata")
        traffic_class = metadata.get(CLASS_FIELD) if isinstance(metadata, dict) else None
        return traffic_class if isinstance(traffic_class, str) else None

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
        document = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidJsonError(f"the request body is not valid JSON: {error}; send one JSON object") from error
    if type(document) is not dict:
        raise InvalidJsonError('the request body must be a JSON object, such as {"model": ...}')
    model = document.get(MODEL)
    if model is None:
        model = ""
    elif type(model) is not str:
        raise InvalidFieldError("model must be a string; name one of those that GET /v1/models lists", param=MODEL)
    stream = read_bool(document.get("stream")) if path in STREAMED else False
    if stream is None:
        raise InvalidFieldError("stream must be true or false", param="stream")
    prompt_tokens = (len(body) if size is None else size) // CHARS_PER_TOKEN
    return RequestFacts(path, model, document, prompt_tokens, _max_tokens(path, document), stream=stream)


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


def _max_tokens(path: str, body: dict[str, Any]) -> int | None:
    names = _LIMIT_FIELDS.get(path, _USUAL_LIMIT_FIELDS)
    if path == INVOCATIONS and ("messages" not in body or "prompt" in body or "prompt_embeds" in body):
        names = _USUAL_LIMIT_FIELDS  # vLLM may read it as a completion
    for name in names:
        value = body.get(name)
        if value is not None:
            number = read_int(value)
            if number is not None:
                return number
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
