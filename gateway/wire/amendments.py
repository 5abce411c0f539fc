"""The gateway's decisions about a request, set in the bytes of its body. Pure.

The client's bytes reach the engine unchanged, except for insertions. `amend` inserts `vllm_xargs.traffic_class` and
`vllm_xargs.k_max`, `priority`, for a stream `stream_options.include_usage`, and `model` if another model serves the
request or it names none.

1. A field that the body lacks becomes a first member of the body.
2. Into an object that is present the members are merged; they replace its own values of these members.
3. When a body states a field twice, both are amended, so it does not matter which one the engine uses.
4. A `vllm_xargs` that is neither object nor null is left for the engine to reject.
5. Usage is requested only for a client that did not ask. Its `continuous_usage_stats` becomes false: vLLM ignores it
   without `include_usage`, and with it would put usage into every event.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import orjson

from specpilot.gateway.wire.body_fields import (
    CEILING_FIELD,
    CLASS_FIELD,
    CONTINUOUS_USAGE,
    INCLUDE_USAGE,
    MODEL,
    PRIORITY,
    REQUEST_ID,
    STREAM_OPTIONS,
    XARGS,
)
from specpilot.gateway.wire.errors import BodyTooComplexError
from specpilot.gateway.wire.form import FormOutline
from specpilot.gateway.wire.json_members import WALKED, WALKED_STRINGS, members_of
from specpilot.gateway.wire.outline import BodyOutline
from specpilot.gateway.wire.request_facts import RequestFacts
from specpilot.gateway.wire.routes import FORMS, STORED
from specpilot.policy.names import is_class_name

COPY_LIMIT_BYTES: Final = 65_536
"""Bytes up to which a body is copied into one buffer with its new fields. A larger one is sent in slices."""

_USUAL_BODY: Final = {MODEL: ""}
_USAGE: Final = {INCLUDE_USAGE: b"true"}
_NOT_CONTINUOUS: Final = {CONTINUOUS_USAGE: b"false"}


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
        self.usual_members = self.first_members_of(_USUAL_BODY)

    def first_members_of(self, body: dict[str, Any]) -> bytes:
        """Return the members to insert into a body that was parsed as `body`."""
        text = b""
        if self.xargs and XARGS not in body:
            text += b'"%s":{%s},' % (XARGS.encode(), _text_of(self.xargs))
        if self.has_priority and PRIORITY not in body:
            text += b'"%s":%s,' % (PRIORITY.encode(), self.priority)
        if self.asks_usage and STREAM_OPTIONS not in body:
            text += b'"%s":{%s},' % (STREAM_OPTIONS.encode(), _text_of(_USAGE))
        if self.model is not None and MODEL not in body:
            text += b'"%s":%s,' % (MODEL.encode(), self.model)
        return text if body else text[:-1]


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
    body: tuple[bytes, ...], facts: RequestFacts, decisions: Amendments, outline: BodyOutline | None = None
) -> tuple[bytes | memoryview, ...]:
    """Return `body` with the amendments `decisions`, as buffers to send one after another. A form gets the model only.

    `body` is in one part, or has an `outline`. `facts` must be the result of `read_facts` for it or its outline. Raises
    `BodyTooComplexError`.
    """
    if facts.path in FORMS or facts.path in STORED:
        if decisions.model is None or not isinstance(outline, FormOutline):
            return body
        return _spliced(body, [outline.model_edit(facts.model)])
    members = facts.body
    text = body[0] if outline is None else outline.finish()
    opened = 0 if text[:1] == b"{" else text.index(b"{")
    start = opened + 1 if outline is None else outline.place(opened + 1)
    is_usual = decisions.model is None and XARGS not in members and PRIORITY not in members
    if is_usual and members and STREAM_OPTIONS not in members:
        return _spliced(body, [(start, start, decisions.usual_members)])  # only case 1, the most frequent one
    added = decisions.first_members_of(members)
    has_xargs = bool(decisions.xargs) and XARGS in members
    has_options = decisions.asks_usage and STREAM_OPTIONS in members
    edits: list[tuple[int, int, bytes]] = [(start, start, added)] if added else []
    if not (has_xargs or has_options or PRIORITY in members or decisions.model is not None):
        return _spliced(body, edits)
    if outline is None:
        return _spliced(body, edits + _changes(text, opened, decisions))
    if outline.strings > WALKED_STRINGS:
        raise BodyTooComplexError(f"{WALKED} at most {WALKED_STRINGS} strings can be read; send fewer")
    for begin, end, new in _changes(text, opened, decisions):
        edits.append((outline.place(begin), outline.place(end), new))
    return _spliced(body, edits)


def with_request_id(body: Sequence[bytes | memoryview], identifier: str) -> tuple[bytes | memoryview, ...]:
    """Return `body` with `identifier` in place of its `request_id`, which is null."""
    text = b"".join(body)
    new = b'"%s"' % identifier.encode()
    edits = [(begin, end, new) for key, begin, end in members_of(text, text.index(b"{")) if key == REQUEST_ID]
    return _spliced((text,), edits)


def _changes(text: bytes, opened: int, decisions: Amendments) -> list[tuple[int, int, bytes]]:
    """Return the replacements within the object at `opened`, of members that it has (cases 2 to 5)."""
    changed: list[tuple[int, int, bytes]] = []
    for key, begin, end in members_of(text, opened):
        if key == XARGS and decisions.xargs:
            changed += _merged(text, begin, end, decisions.xargs)
        elif key == STREAM_OPTIONS and decisions.asks_usage:
            changed += _merged(text, begin, end, _USAGE, _NOT_CONTINUOUS)
        elif key == PRIORITY:
            changed.append((begin, end, decisions.priority))
        elif key == MODEL and decisions.model is not None:
            changed.append((begin, end, decisions.model))
    return changed


def _text_of(members: dict[str, bytes]) -> bytes:
    """Return `members` (names to JSON values) as the text between the braces of an object."""
    return b",".join([b'"%s":%s' % (name.encode(), value) for name, value in members.items()])


def _merged(
    body: bytes, start: int, end: int, fields: dict[str, bytes], present: dict[str, bytes] | None = None
) -> list[tuple[int, int, bytes]]:
    """Return the edits that set `fields` in the object or null between `start` and `end`; none for other values.

    Those of `present` are set only if the object has them.
    """
    if body[start:end] == b"null":
        return [(start, end, b"{" + _text_of(fields) + b"}")]
    if body[start : start + 1] != b"{":
        return []
    members = list(members_of(body, start))
    values = fields if present is None else {**fields, **present}
    replaced = [(begin, end, values[key]) for key, begin, end in members if key in values]
    named = {key for key, _, _ in members}
    added = {name: value for name, value in fields.items() if name not in named}
    if not added:
        return replaced
    return [(start + 1, start + 1, _text_of(added) + (b"," if members else b"")), *replaced]


def _spliced(body: tuple[bytes, ...], edits: list[tuple[int, int, bytes]]) -> tuple[bytes | memoryview, ...]:
    """Return `body` with each of `edits` (start, end, new text) applied. Edits are sorted and do not overlap."""
    first = body[0]
    if len(body) == 1 and len(first) <= COPY_LIMIT_BYTES:
        if len(edits) == 1:  # most requests have no members besides the added ones
            start, end, text = edits[0]
            return (first[:start] + text + first[end:],)
        copied: list[bytes] = []
        position = 0
        for start, end, text in edits:
            copied += (first[position:start], text)
            position = end
        copied.append(first[position:])
        return (b"".join(copied),)
    # A large body: slices of its parts, without a copy, and the new texts between them. The last edit adds nothing;
    # with it the loop reaches the body's end.
    parts: list[bytes | memoryview] = []
    index = begin = position = 0  # the current part, its offset in the body, the offset up to which all is done
    size = sum(map(len, body))
    for start, end, text in (*edits, (size, size, b"")):
        while position < end or position < start:
            part = body[index]
            stop = begin + len(part)
            upto = min(stop, start if position < start else end)
            if position < start:  # kept; between `start` and `end`, replaced
                parts.append(memoryview(part)[position - begin : upto - begin])
            position = upto
            if position == stop:
                begin = stop
                index += 1
        if text:
            parts.append(text)
    return tuple(parts)
