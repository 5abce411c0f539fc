"""One frame of a stream of server-sent events: its data, and what it means. Pure.

A frame is the lines up to a blank line. Here they end in LF alone (`with_line_feeds`); fields stand in any order.

Names. An API names the events that open a stream before anything is generated, and those that end it; some streams have
the name only in the data, as its first member, `type`. Text in a JSON string cannot imitate one, because quotes in it
are escaped.

Keep-alives. An engine that prefills sends them so that no proxy closes the stream. A frame is one when it dispatches no
event (it has no line of data), when its name is that of a keep-alive, or when its data is empty or an object of such a
type.
"""

import re
from typing import Any, Final

import orjson

from specpilot.gateway.wire.usage import is_error

FAILED: Final = 1
OPENING: Final = 2
END: Final = 3

_FAILED_NAMES: Final = rb"(error|response\.failed)"
_OPENING_NAMES: Final = rb"response\.(?:created|queued|in_progress)|message_start"
_LAST_NAMES: Final = rb"(message_stop|response\.(?:completed|incomplete|cancelled))"
_KEEP_ALIVE_NAMES: Final = rb"ping|keep-?alive|heartbeat"
NAME: Final = re.compile(
    rb"^event: ?(?:%b|(%b|%b)|%b)$" % (_FAILED_NAMES, _OPENING_NAMES, _KEEP_ALIVE_NAMES, _LAST_NAMES), re.MULTILINE
)
"""The names of events whose name matters: of OpenAI's Responses, and of Anthropic's API. The group is their kind."""

TYPE: Final = re.compile(
    rb'data:[ \t]*\{[ \t]*"type"[ \t]*:[ \t]*"(?:%b|(%b)|%b)"' % (_FAILED_NAMES, _OPENING_NAMES, _LAST_NAMES)
)
"""The same names in the data of an event without one: its first member, as these APIs send it."""

_KEEP_ALIVE: Final = re.compile(rb"^event: ?(?:%b)$" % _KEEP_ALIVE_NAMES, re.MULTILINE)
_SAYS_NOTHING: Final = re.compile(rb'\s*(?:$|\{\s*"type"\s*:\s*"(?:%b)"[^{\[\r\n]*\}\s*$)' % _KEEP_ALIVE_NAMES)
_DATA: Final = re.compile(rb"^data(?:: ?(.*))?$", re.MULTILINE)


def with_line_feeds(text: bytes) -> bytes:
    """Return `text` with each line ended by LF alone."""
    return text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def data_of(frame: bytes) -> bytes | None:
    """Return the data of a frame, its lines joined; `None` if it has none."""
    lines = _DATA.findall(frame)
    return b"\n".join(lines) if lines else None


def says_nothing(frame: bytes) -> bool:
    """Whether a frame has no data, or only that of a keep-alive."""
    data = data_of(frame)
    return data is None or _SAYS_NOTHING.match(data) is not None


def keeps_alive(frame: bytes) -> bool:
    """Whether the whole frame is a keep-alive and nothing else."""
    return says_nothing(frame) or _KEEP_ALIVE.search(frame) is not None


def document_of(frame: bytes) -> dict[str, Any] | None:
    """Return the data of a frame if it is a JSON object."""
    try:
        document = orjson.loads(data_of(frame) or b"")
    except orjson.JSONDecodeError:
        return None
    return document if type(document) is dict else None


def has_only_usage(frame: bytes) -> bool:
    """Whether a frame has usage behind all choices, and nothing else."""
    document = document_of(frame)
    return document is not None and not document.get("choices", True) and type(document.get("usage")) is dict


def stated_end(frame: bytes, *, has_one_choice: bool) -> int:
    """Return `FAILED` or `END` if the last event says that its stream ends so; 0 if it does not say it."""
    name = NAME.search(frame)
    if name is not None and name.lastindex in (FAILED, END):
        return name.lastindex
    document = document_of(frame)
    if document is None:
        return 0
    name = NAME.fullmatch(b"event: %s" % str(document.get("type")).encode())
    kind = 0 if name is None else name.lastindex
    if kind == FAILED or is_error(orjson.dumps({"error": document.get("error")})):
        return FAILED
    choices, delta = document.get("choices"), document.get("delta")
    if type(choices) is list:
        if choices:
            reasons = [choice.get("finish_reason") for choice in choices if type(choice) is dict]
            is_end = has_one_choice and bool(reasons) and all(reasons)
        else:
            is_end = type(document.get("usage")) is dict
    else:
        is_end = kind == END or (type(delta) is dict and bool(delta.get("stop_reason")))
    return END if is_end else 0
