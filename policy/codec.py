"""Converts JSON to checked values and back, for all documents that programs exchange.

Documents that people write (`from_plain`) must not have unknown fields, so that a typing error in a policy is reported.
Documents that programs write (`decode`) may have them: an older version ignores a field that a newer one added. Every
fault of a document is reported, with the path of its field.
"""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from specpilot.policy.errors import Fault, InvalidDocumentError

T = TypeVar("T")
_UNKNOWN_FIELD = ("extra_forbidden", "unexpected_keyword_argument")
_PLAIN = dict.fromkeys(_UNKNOWN_FIELD, "is not a known field") | {"missing": "is missing; it must be given"}
_SHOULD = re.compile(r"(?:Input|Value|String|List|Tuple|Set|Dictionary|Data|URL)[\w ]*? should ")
_NOUNS = {
    r"a valid integer\b.*": "a whole number",
    r"a valid (finite )?number\b.*": "a number",
    r"a finite number": "a number",
    r"a valid boolean\b.*": "true or false",
    r"a valid string": "text",
    r"a valid (list|tuple|set|array)": "a list",
    r"(a valid (dictionary|mapping)|an object|(a dictionary or )?an instance of \w+)": "an object",
}
"""What pydantic calls the kinds of values, and what JSON calls them."""
_WORDS = {
    "less than or equal to": "at most",
    "greater than or equal to": "at least",
    "greater than": "above",
    " after validation": "",
    ", not more": "",
    "Invalid JSON: ": "not JSON: ",
}


def _adapter(kind: Any) -> TypeAdapter[Any]:  # mypy takes a `type` for unhashable, so not `cache` itself
    return _built(kind)


@cache
def _built(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def decode(kind: type[T], data: bytes | str) -> T:
    """Return the JSON text `data` as a value of type `kind`; fields that are unknown in `kind` are left out.

    A byte order mark before it is ignored. Raises `InvalidDocumentError` with every fault found.
    """
    data = data.removeprefix("\ufeff") if isinstance(data, str) else data.removeprefix(b"\xef\xbb\xbf")
    try:
        value: T = _adapter(kind).validate_json(data, extra="ignore")
    except ValidationError as error:
        raise InvalidDocumentError(kind.__name__, faults_of(error)) from error
    return value


def decode_each(kind: type[T], texts: Mapping[bytes, bytes]) -> dict[str, T | InvalidDocumentError]:
    """Return each of `texts` as a document, or its faults."""
    documents: dict[str, T | InvalidDocumentError] = {}
    for name, text in texts.items():
        try:
            documents[name_of(name)] = decode(kind, text)
        except InvalidDocumentError as error:
            documents[name_of(name)] = error
    return documents


def name_of(stored: bytes) -> str:
    """Return the name of a stored document; bytes that are no UTF-8 are replaced, since anything may be stored."""
    return stored.decode(errors="replace")


def from_plain(kind: type[T], data: Any, context: object = None) -> T:
    """Return plain JSON-like `data` as a value of type `kind`, whose checks get `context`; errors as in `decode`."""
    try:
        value: T = _adapter(kind).validate_python(data, context=context)
    except ValidationError as error:
        raise InvalidDocumentError(kind.__name__, faults_of(error)) from error
    return value


def encode(value: object) -> bytes:
    """Return `value` as compact JSON."""
    return _adapter(type(value)).dump_json(value)


def to_plain(value: object) -> Any:
    """Return `value` as plain JSON-like data."""
    return _adapter(type(value)).dump_python(value, mode="json")


def schema(kind: type[object]) -> dict[str, Any]:
    """Return the JSON schema of `kind`, for the API's documentation."""
    return _adapter(kind).json_schema()


def plain_words(message: str) -> str:
    """Return a message of pydantic in the words of this program."""
    text = _SHOULD.sub("must ", message.removeprefix("Value error, "), count=1)
    for pattern, noun in _NOUNS.items():
        text = re.sub(rf"^must be {pattern}$", f"must be {noun}", text)
    for words, plain in _WORDS.items():
        text = text.replace(words, plain)
    return text


def faults_of(error: ValidationError) -> tuple[Fault, ...]:
    """Return pydantic's findings as faults: dotted path and plain words."""
    return tuple(
        Fault(
            field=".".join(str(part) for part in item["loc"] if part != "[key]"),  # pydantic's mark of a name at fault
            problem=_PLAIN.get(item["type"]) or plain_words(item["msg"]),
        )
        for item in error.errors(include_url=False, include_context=False, include_input=False)
    )
