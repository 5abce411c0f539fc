"""A `multipart/form-data` body as it arrives: short fields are kept, files are skipped. Pure.

The gateway needs only the fields; the bytes go to the engine unchanged, except that a form without a model gets one
(`FormOutline.model_edit`). In a file only the end of its part is searched; the file is not stored a second time.
`FormOutline.finish` returns the fields as a JSON object, so that a form is read by the same rules as any other body
(`gateway.wire.request_facts.read_facts`).

| state | `_is_head` | `_is_over` | expects | next state |
|---|---|---|---|---|
| content | no | no | the next boundary; `_is_kept`: a field's value, else a file or the preamble | head |
| head | yes | no | after a boundary: `--`, or the headers of a part | over, or content |
| over | yes | yes | white space |  |

The client chooses the boundary, so it is searched by a pattern, which reads each byte a bounded number of times.
`bytes.find` compares up to the whole boundary at each position: 5 ms for a read full of almost-boundaries. The bytes
carried over from one read to the next are fewer than a delimiter or the headers of a part, however the body is cut.

Names and boundaries may be tokens or quoted, their parameters in any order (RFC 7578, `gateway.wire.parameters`). Forms
that servers read in different ways are rejected, so that the engine sees the same fields as the gateway: another
charset or transfer encoding, escapes in names, `name*`, a parameter twice, two dispositions of one part, a boundary
within a line, anything before the first or after the last, two values of a field that decides the route. `vllm_xargs`
may not name a class, because the gateway could not replace it.
"""

import re
from typing import Final

import orjson

from specpilot.gateway.wire.body_fields import CLASS_FIELD, XARGS
from specpilot.gateway.wire.errors import BodyTooComplexError, InvalidFormError
from specpilot.gateway.wire.outline import BodyOutline
from specpilot.gateway.wire.parameters import read_parameters

PARTS_MAX: Final = 128
"""Parts of one form; OpenAI's largest has some 20."""

PART_HEAD_BYTES: Final = 4096
"""Bytes of one part's headers."""

FIELD_BYTES: Final = 16_384
"""Bytes of one field that are kept, a prompt for example. The engine gets the whole field."""

_CONTENT_TYPE: Final = re.compile(rb"(?:^|\r\n)content-type: *([^\r\n]*)", re.IGNORECASE)
_BOUNDARY: Final = re.compile(rb"[\w'()+,./:=? -]{0,69}[\w'()+,./:=?-]", re.ASCII)
_DISPOSITION: Final = re.compile(rb"^content-disposition *:([^\r\n]*)", re.IGNORECASE | re.MULTILINE)
_NAME: Final = re.compile(rb'[^"\\]{1,128}')
_ENCODED: Final = re.compile(
    rb"^content-transfer-encoding *:(?! *(?:binary|7bit|8bit) *\r$)", re.IGNORECASE | re.MULTILINE
)
_ONCE: Final[tuple[bytes, ...]] = (b"model", b"stream", b"vllm_xargs")
_UTF_8: Final[tuple[bytes, ...]] = (b"utf-8", b"utf8")
_END: Final = b"--"
_LINE: Final = b"\r\n"


class FormOutline(BodyOutline):
    """The state of a form that is being read: see the module."""

    __slots__ = (
        "_begin",
        "_boundary",
        "_fields",
        "_is_head",
        "_is_kept",
        "_is_over",
        "_model_at",
        "_name",
        "_parts",
        "_rest",
        "_search",
        "_start",
        "_value",
    )

    def __init__(self, header_lines: bytes) -> None:
        """`header_lines` are the request's, names in lower case. Raises `InvalidFormError`."""
        super().__init__()
        boundary = _boundary_of(_CONTENT_TYPE.findall(header_lines))
        if boundary is None:
            raise InvalidFormError(
                "this route takes a form; send one content-type, multipart/form-data with a boundary"
            )
        self._boundary: bytes = b"--" + boundary
        self._search: re.Pattern[bytes] = re.compile(re.escape(self._boundary))
        self._rest = _LINE  # replaces the line break before the first boundary, which may be missing
        self._begin = -len(_LINE)  # the offset of `_rest` in the body
        self._start = 0  # the offset of the first boundary
        self._model_at: int | None = None  # the offset of the end of the field `model`
        self._is_head = False
        self._is_over = False
        self._is_kept = False
        self._name = b""
        self._value = b""
        self._parts = 0
        self._fields: dict[str, str] = {}

    def feed(self, data: bytes) -> None:
        """Read the next part of the body. Raises `InvalidFormError` and `BodyTooComplexError`."""
        text = self._rest + data
        at = 0
        while not self._is_over:
            if self._is_head:
                end = self._read_head(text, at)
                if end < 0:
                    break
                at = end
                continue
            match = self._search.search(text, at)
            if match is None:
                safe = max(at, len(text) - len(_LINE + self._boundary) + 1)  # a boundary may begin after this
                self._keep(text[at:safe])
                at = safe
                break
            start = match.start()
            end = start - len(_LINE)
            if end < at or not text.startswith(_LINE, end):
                raise InvalidFormError("the form's boundary occurs within a line; choose another boundary")
            self._keep(text[at:end])
            self._end_part(self._begin + end)
            at = start + len(self._boundary)
            self._is_head = True
        self._rest = text[at:]
        self._begin += at
        if self._is_over:
            if self._rest.strip():
                raise InvalidFormError("the form goes on after its last boundary; end it there")
            self._rest = b""

    def _read_head(self, text: bytes, at: int) -> int:
        """Read the bytes after a boundary, from `at` on; return their end, -1 while they are incomplete."""
        mark = text[at : at + 2]
        if mark == _END:
            self._is_over = True
            return at + 2
        if len(mark) < len(_LINE):
            return -1
        if mark != _LINE:
            raise InvalidFormError("a line of the form only begins with its boundary; choose another boundary")
        end = text.find(b"\r\n\r\n", at)
        if (len(text) if end < 0 else end) - at > PART_HEAD_BYTES:
            raise InvalidFormError(f"a part of the form has more than {PART_HEAD_BYTES} bytes of headers; send fewer")
        if end < 0:
            return -1
        self._begin_part(text[at : end + 2])
        self._is_head = False
        return end + 4

    def finish(self) -> bytes:
        """Return the fields of the whole body as a JSON object. Raises `InvalidFormError` when its end is missing."""
        if not self._is_over:
            raise InvalidFormError("the form is not whole: its last boundary is missing; send it to its end")
        if CLASS_FIELD in _arguments(self._fields.get(XARGS)):
            raise InvalidFormError(
                f"`{XARGS}` of a form may not name `{CLASS_FIELD}`: the gateway sets it; leave it out"
            )
        return orjson.dumps(self._fields)

    def model_edit(self, model: str) -> tuple[int, int, bytes]:
        """Return the edit (start, end, new text) that names `model` in a form whose `model` is missing or empty."""
        if self._model_at is not None:
            return self._model_at, self._model_at, model.encode()
        head = b'\r\nContent-Disposition: form-data; name="model"\r\n\r\n'
        return 0, self._start, self._boundary + head + model.encode() + _LINE

    def _begin_part(self, head: bytes) -> None:
        self._parts += 1
        if self._parts > PARTS_MAX:
            raise BodyTooComplexError(f"the form has more than {PARTS_MAX} parts; send fewer")
        stated = _DISPOSITION.findall(head.removeprefix(_LINE))
        disposition = read_parameters(stated[0]) if len(stated) == 1 else None
        is_form = disposition is not None and disposition.kind == b"form-data" and b"name*" not in disposition.values
        name = disposition.values.get(b"name", b"") if disposition is not None and is_form else b""
        is_file = disposition is not None and (b"filename" in disposition.values or b"filename*" in disposition.values)
        if not is_form or (_NAME.fullmatch(name) is None and not is_file):
            raise InvalidFormError('a part of the form has no name; give each `form-data; name="..."`, once')
        if not is_file:
            if _ENCODED.search(head) is not None:
                raise InvalidFormError("a field of the form has a transfer encoding; send it as it is")
            if name in _ONCE and name.decode() in self._fields:
                raise InvalidFormError(f"the form states `{name.decode()}` twice; state it once")
        self._is_kept = not is_file
        self._name = b"" if is_file else name
        self._value = b""

    def _keep(self, data: bytes) -> None:
        if not self._parts and data.strip(_LINE):
            raise InvalidFormError("the form does not begin with its boundary; begin with that")
        if self._is_kept and len(self._value) < FIELD_BYTES:
            self._value += data[: FIELD_BYTES - len(self._value)]

    def _end_part(self, end: int) -> None:
        """The part, or what is before the first one, ends at the offset `end`."""
        if not self._parts:
            self._start = end + len(_LINE)
        if self._name == b"model":
            self._model_at = end
        if self._is_kept:
            errors = "strict" if len(self._value) < FIELD_BYTES else "replace"  # the limit may cut a character
            try:
                self._fields[self._name.decode()] = self._value.decode(errors=errors)
            except UnicodeDecodeError as error:
                raise InvalidFormError("a field of the form is not UTF-8; send it in UTF-8") from error
        self._is_kept = False


def _boundary_of(stated: list[bytes]) -> bytes | None:
    """Return the boundary in the one content type; `None` when that is not a form in UTF-8."""
    content_type = read_parameters(stated[0]) if len(stated) == 1 else None
    if content_type is None or content_type.kind != b"multipart/form-data":
        return None
    boundary = content_type.values.get(b"boundary", b"")
    if content_type.values.get(b"charset", b"utf-8").lower() not in _UTF_8 or _BOUNDARY.fullmatch(boundary) is None:
        return None
    return boundary


def _arguments(text: str | None) -> dict[str, object]:
    """Return the arguments of `vllm_xargs`, which is JSON text in a form. Raises `InvalidFormError`."""
    try:
        arguments = orjson.loads(text or "{}")
    except orjson.JSONDecodeError as error:
        raise InvalidFormError(f"`{XARGS}` of the form is not JSON: {error}; send an object") from error
    return arguments if type(arguments) is dict else {}
