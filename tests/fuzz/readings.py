"""How other parsers (h11) and plain reference code read the same bytes."""

import json
import re
from dataclasses import dataclass
from typing import Any

import h11

LARGEST = 10**6


@dataclass(frozen=True)
class Message:
    """A whole message: request line or status, headers, body."""

    first: tuple[bytes, bytes] | int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


@dataclass(frozen=True)
class Reading:
    """Whole messages; why there are no more (`None`: the bytes ran out); what was not read; the one that broke."""

    messages: tuple[Message, ...]
    fault: str | None
    rest: bytes
    broken: Message | None = None


def requests_in(data: bytes) -> Reading:
    """Read `data` as what a server gets on one connection."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=LARGEST)
    connection.receive_data(data)
    messages: list[Message] = []
    first, headers, body = (b"", b""), (), b""
    try:
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                first, body = (event.method, event.target), b""
                headers = tuple(event.headers)
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                messages.append(Message(first, headers, body))
                connection.send(h11.Response(status_code=400, headers=[("content-length", "0")]))
                connection.send(h11.EndOfMessage())
                if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                    return Reading(tuple(messages), "closes", connection.trailing_data[0])
                connection.start_next_cycle()
            else:
                return Reading(tuple(messages), None, connection.trailing_data[0])
    except h11.RemoteProtocolError as error:
        return Reading(tuple(messages), str(error), b"")


def response_in(data: bytes, *, ends: bool) -> Reading:
    """Read `data` as the answer to one GET; `ends`: the connection was closed after it."""
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=LARGEST)
    connection.send(h11.Request(method="GET", target="/", headers=[("host", "x")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(data)
    if ends:
        connection.receive_data(b"")
    status, headers, body = 0, (), b""
    try:
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Response):
                status, headers = event.status_code, tuple(event.headers)
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return Reading((Message(status, headers, body),), None, connection.trailing_data[0])
            elif not isinstance(event, h11.InformationalResponse):
                return Reading((), "not whole", b"")
    except h11.RemoteProtocolError as error:
        return Reading((), str(error), b"", Message(status, headers, body))


KEEP_ALIVE = (b"ping", b"keepalive", b"keep-alive", b"heartbeat")
"""What an engine sends only to show that it lives, as the name of an event or as the type of its data."""

_KINDS = {
    **dict.fromkeys((b"error", b"response.failed"), "error"),
    **dict.fromkeys((b"response.created", b"response.queued", b"response.in_progress"), "opening"),
    **dict.fromkeys((b"message_start", *KEEP_ALIVE), "opening"),
    **dict.fromkeys((b"message_stop", b"response.completed", b"response.incomplete", b"response.cancelled"), "end"),
}
"""Names of events that mean something; of several before the data the first."""


@dataclass(frozen=True)
class Events:
    """What a stream of server-sent events says."""

    deltas: int
    is_done: bool
    has_error: bool | None  # `None`: some data looks like an error and is no JSON


def events_in(data: bytes) -> Events:
    """Read `data` line by line, as the standard says: a line ends in CRLF, LF or CR."""
    deltas, is_done, has_error, is_unsure = 0, False, False, False
    kind, openings, others = "", 0, 0
    first: bytes | None = None
    for line in re.split(rb"\r\n|\n|\r", data)[:-1]:
        if line:
            if line.startswith(b"event:") and first is None:
                kind = kind or _KINDS.get(line[6:].removeprefix(b" "), "")
            if first is not None:
                others += line.startswith(b"data:") and bool(line[5:].strip())  # another field is no data
            elif line.startswith(b"data:"):
                first = line[5:].removeprefix(b" ")
        elif first is not None:
            openings += kind == "opening" and openings == deltas
            is_done = is_done or kind == "end"
            if first.startswith(b"[DONE]"):
                is_done = True
            elif deltas != openings or others or not _says_nothing(first):  # before content keep-alives do not count
                deltas += 1
                is_error = _is_error(first)
                has_error, is_unsure = has_error or kind == "error" or is_error is True, is_unsure or is_error is None
            kind, first, others = "", None, 0
        else:
            kind = ""
    return Events(deltas, is_done, None if is_unsure and not has_error else has_error)


def states_end(data: bytes) -> bool:
    """Whether the last event of a stream that broke off states its end, for a request for one choice."""
    found: Any = None
    names: set[str] = set()
    for block in re.sub(rb"\r\n|\r", b"\n", data).split(b"\n\n"):
        lines = [line[5:].removeprefix(b" ") for line in block.split(b"\n") if line.startswith(b"data:")]
        if lines and not lines[0].startswith(b"[DONE]"):
            names = {
                line[6:].removeprefix(b" ").decode("latin-1") for line in block.split(b"\n") if line[:6] == b"event:"
            }
            try:
                found = json.loads(b"\n".join(lines))
            except ValueError:
                found = None
    if isinstance(found, dict):
        names.add(str(found.get("type")))
        delta, choices = found.get("delta"), found.get("choices")
        if found.get("error") or (isinstance(delta, dict) and delta.get("stop_reason")):
            return True
        if choices == []:
            return isinstance(found.get("usage"), dict)
        if isinstance(choices, list) and all(isinstance(item, dict) and item.get("finish_reason") for item in choices):
            return True
    return any(_KINDS.get(name.encode("latin-1", "replace")) in ("end", "error") for name in names)


def _says_nothing(data: bytes) -> bool:
    """Whether data is empty, or a flat JSON object whose first member is a keep-alive's type."""
    if not data.strip():
        return True
    try:
        found = json.loads(data)
    except ValueError:
        return False
    name, value = next(iter(found.items()), ("", None)) if isinstance(found, dict) else ("", None)
    is_flat = data.count(b"{") == 1 and b"[" not in data
    return is_flat and name == "type" and isinstance(value, str) and value.encode() in KEEP_ALIVE


def _is_error(data: bytes) -> bool | None:
    """Whether data is a JSON object whose first member, by its value, says that it is an error; `None`: no JSON."""
    try:
        found = json.loads(data)
    except ValueError:
        if re.match(rb'\s*\{\s*"error"\s*:\s*(?:"[^"]|\[\s*"|[1-9]|true)', data):
            return True  # whatever follows, the value is not empty
        return None if re.match(rb'\s*\{\s*"(?:error|object|type)"', data) else False
    name, value = next(iter(found.items()), ("", None)) if isinstance(found, dict) else ("", None)
    if name != "error":
        return name in ("object", "type") and value == "error"
    if not isinstance(value, dict):
        return bool(value)
    return any(type(member) not in (type(None), bool, int, str) or bool(member) for member in value.values())
