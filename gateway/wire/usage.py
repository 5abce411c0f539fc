"""Reads the usage in a JSON text, and whether it is an error; by plain byte search if the text is long. Pure.

The last frame with `usage`, or a JSON body, is parsed. Its own `usage` has the numbers of input and output tokens, its
`metrics.speculative_decoding` the mean acceptance length. An object of that name elsewhere may be echoed from the
client and is ignored. Only if the text was too long to keep, the last object of that name is searched. Each number is
`None` when the engine did not state it, or stated one above `NUMBER_MAX`.
"""

import json
import re
from typing import Any, Final

import orjson

_DECODER: Final = json.JSONDecoder()
_SPECULATION: Final = re.compile(rb'"speculative_decoding"\s*:\s*\{')
USAGE: Final = re.compile(rb'"usage"\s*:\s*\{')
"""The begin of a `usage` object."""
_ERROR: Final = re.compile(
    rb'(?:data:)?\s*\{\s*"(?:error"\s*:\s*(?!null\b|false\b|0\b|""|\[\s*\]'
    rb'|\{\s*(?:"\w*"\s*:\s*(?:null\b|false\b|0\b|"")\s*,?\s*)*+\})\S|(?:object|type)"\s*:\s*"error")'
)
"""A JSON object that is an error, by the value of its first member: some good answers have `"error": null`, or an error
object whose members are all null."""
_ERROR_CODE: Final = re.compile(rb'"code"\s*:\s*"?(\d{3})\b')
_CLIENTS_ERROR: Final = re.compile(
    rb'"type"\s*:\s*"(?:invalid_request_error|not_found_error|request_too_large|(?:BadRequest|NotFound)Error)"'
)
_CLIENTS_FAULT: Final = range(400, 500)
_OPERATORS_FAULT: Final[tuple[int, ...]] = (401, 403)

NUMBER_MAX: Final = 10**12
"""The largest number that counts as stated. Sums of larger ones would not fit into the 64 bits of a tally."""


class Usage:
    """The usage in a response: its tokens and mean acceptance length (bonus token included)."""

    __slots__ = ("acceptance_length", "input_tokens", "output_tokens")

    def __init__(self) -> None:
        self.input_tokens: int | None = None
        self.output_tokens: int | None = None
        self.acceptance_length: float | None = None

    @property
    def total_tokens(self) -> int | None:
        """Input and output tokens together; `None` when the response states neither."""
        if self.input_tokens is None and self.output_tokens is None:
            return None
        return (self.input_tokens or 0) + (self.output_tokens or 0)

    def read_document(self, text: bytes) -> bool:
        """Read one whole JSON document; return whether it is one.

        Its usage is the document's own `usage`, else that of its `response` (OpenAI's Responses) or `message`
        (Anthropic's).
        """
        try:
            document = orjson.loads(text)
        except orjson.JSONDecodeError:
            return False
        if type(document) is dict:
            self._read(document)
        return True

    def _read(self, document: dict[str, Any]) -> None:
        if type(document.get("usage")) is dict:
            self._read_usage(document)
        else:
            self._read_usage(document.get("response"))
            self._read_usage(document.get("message"))
        metrics = document.get("metrics")
        speculation = metrics.get("speculative_decoding") if type(metrics) is dict else None
        length = speculation.get("mean_acceptance_length") if type(speculation) is dict else None
        if isinstance(length, (int, float)):
            self.acceptance_length = float(length) if 0 <= length <= NUMBER_MAX else None

    def _read_usage(self, holder: object) -> None:
        """Read the `usage` of `holder`, if it is an object that has one."""
        usage = holder.get("usage") if type(holder) is dict else None
        if type(usage) is dict:
            self.input_tokens = _count(usage, "prompt_tokens", "input_tokens", self.input_tokens)
            self.output_tokens = _count(usage, "completion_tokens", "output_tokens", self.output_tokens)

    def read_ending(self, text: bytes) -> bool:
        """Read the end of one complete JSON object, where engines put usage; return whether this was possible.

        The text from a member of the outermost object on, with a brace before it, is an object too. From a member of
        another object on, it has a brace or bracket too many. So the choices, which may be long, need not be parsed.
        """
        at = text.rfind(b'"usage"')
        if at < 1 or text.find(b'"speculative_decoding"', 0, at) >= 0:
            return False
        try:
            ending = orjson.loads(b"{" + text[at:])
        except orjson.JSONDecodeError:
            return False
        if type(ending) is not dict or type(ending.get("usage")) is not dict:
            return False
        self._read(ending)
        return True

    def read_part(self, text: bytes) -> None:
        """Read the last usage in a part of a JSON text, and the acceptance length behind it."""
        at = max(0, last_usage(text))
        usage, speculation = _object(USAGE, text, at), _object(_SPECULATION, text, at)
        self._read({"usage": usage, "metrics": {"speculative_decoding": speculation}})


def is_error(text: bytes) -> bool:
    """Whether a JSON body or a line of data is an error. `text` is at least its beginning."""
    return _ERROR.match(text) is not None


def is_engines_fault(error: bytes) -> bool:
    """Whether an error that an engine sent with status 200 is its own fault, by its code or type.

    Only 4xx is the client's fault, except 401 and 403: the credentials are the gateway's.
    """
    code = _ERROR_CODE.search(error)
    if code is None:
        return _CLIENTS_ERROR.search(error) is None
    return int(code[1]) not in _CLIENTS_FAULT or int(code[1]) in _OPERATORS_FAULT


def _count(usage: dict[str, Any], name: str, other: str, default: int | None) -> int | None:
    for value in (usage.get(name), usage.get(other)):
        if type(value) is int and 0 <= value <= NUMBER_MAX:
            return value
    return default


def _object(name: re.Pattern[bytes], text: bytes, at: int) -> Any:
    """Return the first object of that `name` from `at` on in a part of a JSON text; `None` if there is none."""
    begin = name.search(text, at)
    if begin is None:
        return None
    try:
        return _DECODER.raw_decode(text[begin.end() - 1 :].decode("latin-1"))[0]
    except (ValueError, RecursionError):  # it is cut off, or nested too deeply
        return None


def last_usage(text: bytes) -> int:
    """Return the offset of the last `usage` object in `text`; -1 when there is none."""
    at = text.rfind(b'"usage"')
    while at >= 0 and USAGE.match(text, at) is None:
        at = text.rfind(b'"usage"', 0, at)
    return at
