"""What must hold for any bytes whatever, one function for each place where bytes from outside are read.

Each takes bytes, derives every other choice (where they are cut, ...) from them, and raises when something that must
never happen has happened. Hypothesis calls them in the normal suite, a coverage-guided fuzzer in `make fuzz`.
"""

import json
import random
import re
import zlib
from collections.abc import Callable
from functools import cache
from typing import Any

from specpilot.gateway.routing.ceiling import ceiling_of
from specpilot.gateway.routing.classify import classify
from specpilot.gateway.wire.amendments import amend
from specpilot.gateway.wire.body_reader import TAIL_BYTES, JsonBody
from specpilot.gateway.wire.errors import InvalidFieldError, InvalidJsonError
from specpilot.gateway.wire.framing import ChunkedFramer, FramingError
from specpilot.gateway.wire.request_facts import read_facts
from specpilot.gateway.wire.routes import MARKED, PROXIED
from specpilot.gateway.wire.sse import FRAME_BYTES, EventStream
from specpilot.gateway.wire.usage import Usage
from specpilot.policy.model_policy import MatchRule
from tests.fuzz.memory_gateway import MemoryGateway
from tests.fuzz.readings import Message, Reading, events_in, requests_in, response_in, states_end

CLASS = "code"
CEILING = 2
SET = {"model": b'"another"', "stream_options": b'{"include_usage":true}', "priority": b"0"}
PATH = "/v1/chat/completions"
REQUEST = b'POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 16\r\n\r\n{"model":"tiny"}'
RULES = (
    MatchRule(traffic_class=CLASS, has_tools=True, has_response_format=True, max_tokens_at_most=9),
    MatchRule(traffic_class=CLASS, path=PATH, stream=True, prompt_chars_at_least=5),
)
MEMORY_BYTES = 2 * FRAME_BYTES

_REFUSALS = (b'"code":"bad_request"', b'"code":"head_too_large"', b"CONNECT is not served")
_LEFT_UNREAD = b"\r\nallow: POST\r\nconnection: close\r\n"
"""A body that has no use and may be endless: of the connection only what came with the head is read."""

_TOLERATED = re.compile(
    r"Missing mandatory Host: header|no request line received"
    r"|illegal request line: bytearray\(b'(?:\\r)*[A-Z-]+ +[!-~]+ +HTTP/1\.[01]'\)"
)
"""What h11 refuses and the gateway need not.

A Host names nothing here; several spaces in a request line are one; empty lines before it, bare LF or CR, are none.
"""


@cache
def _gateway() -> MemoryGateway:
    return MemoryGateway()


def pieces(data: bytes) -> list[bytes]:
    """Cut `data` at random places, always the same for the same bytes."""
    rng = random.Random(zlib.crc32(data))
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.choice((0, 1, 3, 9))))
    if rng.random() < 0.1 and len(data) < 400:
        cuts = list(range(len(data)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True) if start < end]


def heads(data: bytes) -> None:
    """Whatever a client sends: what reaches an engine is what a second parser reads too, and each answer is one."""
    whole = _gateway().talk([data])
    cut = _gateway().talk(pieces(data))
    theirs = requests_in(data)
    is_read = _LEFT_UNREAD not in whole.answered + cut.answered
    if is_read:
        assert _without_ids(cut.relayed) == _without_ids(whole.relayed)
    wanted = [item for item in theirs.messages if item.first[0] == b"POST" and _path_of(item.first[1]) in PROXIED]  # type: ignore[index]
    is_tolerated = theirs.fault is not None and _TOLERATED.match(theirs.fault) is not None
    if is_read and not any(code in whole.answered for code in _REFUSALS):
        assert len(whole.relayed) >= sum(_is_relayable(item) for item in wanted)
    for at, sent in enumerate(whole.relayed):
        ours = requests_in(sent)
        assert ours.fault is None, ours.fault
        assert ours.rest == b""
        assert len(ours.messages) == 1
        [message] = ours.messages
        names = [name for name, _ in message.headers]
        assert names.count(b"content-length") == names.count(b"host") == names.count(b"x-request-id") == 1
        assert message.headers.count((b"x-traffic-class", b"default")) == names.count(b"x-traffic-class") == 1
        assert not {
            b"transfer-encoding",
            b"authorization",
            b"cookie",
            b"x-api-key",
            b"expect",
            b"x-vllm-priority",
        } & set(names)
        if is_tolerated:
            continue
        while wanted and not _is_relayable(wanted[0]):
            wanted.pop(0)
        assert wanted, f"request {at} reached an engine, but another parser sees none: {theirs.fault}"
        other = wanted.pop(0)
        assert _path_of(message.first[1]) == _path_of(other.first[1])  # type: ignore[index]
        assert message.body == _as_relayed(other.body)
    if b"HEAD" not in data:
        _check_answers(whole.answered)


def bodies(data: bytes) -> None:
    """Whatever a body is: it is refused, or reaches the engine with three members set and nothing else changed."""
    try:
        facts = read_facts(PATH, data)
    except (InvalidJsonError, InvalidFieldError) as error:
        assert error.message
        assert error.status == 400
        return
    assert 0 <= facts.work_tokens <= 8192 + 4096
    assert facts.prompt_chars >= 0
    assert classify(facts, None, None, ("default", CLASS), RULES).traffic_class in ("default", CLASS)
    amended = b"".join(amend((data,), facts, SET))
    try:
        ceiling = ceiling_of(None, facts.body, CEILING)
        assert ceiling is not None
        assert 0 <= ceiling <= CEILING
    except InvalidFieldError as error:
        assert error.param == "vllm_xargs.k_max"
    before = _members(data)
    named = {key for key, _ in before}
    before = _Members([*((key, None) for key in SET if key not in named), *before])
    wanted = _Members((key, _members(SET[key]) if key in SET else value) for key, value in before)
    assert _members(amended) == wanted


def answers(data: bytes) -> None:
    """Whatever an engine sends: the client gets one well-formed answer, the engine's own if that is whole."""
    ends = bool(data) and data[0] % 2 == 0
    data = data[1:]
    whole = _gateway().talk([REQUEST], [data], ends=ends)
    cut = _gateway().talk([REQUEST], pieces(data), ends=ends)
    theirs = response_in(data, ends=ends)
    for talk in (whole, cut):
        if not talk.answered or talk.is_cut:
            continue  # nothing yet, or cut off in the middle
        ours = response_in(talk.answered, ends=talk.is_closed)
        if not ours.messages:
            assert not talk.is_closed, ours.fault
            continue
        [message] = ours.messages
        assert ours.rest == b""
        if isinstance(message.first, int) and message.first >= 400:
            assert _is_enveloped(message.body, len(data))
        elif not _has_error_event(message.body):
            _check_same(ours, theirs)
    first, second = (response_in(talk.answered, ends=talk.is_closed) for talk in (whole, cut))
    if first.messages and first.messages[0].first == 200 and not _has_error_event(first.messages[0].body):
        assert [item.body for item in first.messages] == [item.body for item in second.messages]


def framing(data: bytes) -> None:
    """Whatever a chunked body is: cut anywhere, it ends in the same place with the same content."""
    whole, cut = _framed([data]), _framed(pieces(data))
    assert whole == cut
    theirs = response_in(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + data, ends=False)
    if whole is not None and whole[2]:
        assert theirs.messages, theirs.fault
        assert theirs.messages[0].body == whole[1]
        assert theirs.rest == data[whole[0] :]


def taps(data: bytes) -> None:
    """Whatever a stream holds: it is counted as a plain reader counts it, sent as it is, and kept in bounded memory."""
    stream, wanted = EventStream(), events_in(data)
    sent = b""
    for part in pieces(data):
        sent += stream.feed(part)
        assert len(stream._rest) <= MEMORY_BYTES
    if len(data) <= FRAME_BYTES:
        assert (stream.deltas, stream.is_done) == (wanted.deltas, wanted.is_done)
        assert wanted.has_error is None or stream.has_error == wanted.has_error
    usage, whole = Usage(), Usage()
    stream.finish(usage)
    assert sent + stream.rest() == data
    other = EventStream()
    other.feed(data)
    other.finish(whole)
    if len(data) <= FRAME_BYTES:
        assert usage.output_tokens == whole.output_tokens
        assert repr(usage.acceptance_length) == repr(whole.acceptance_length)
    body = JsonBody()
    for part in pieces(data):
        assert body.feed(part) is part
        assert sum(map(len, body._parts)) <= 2 * TAIL_BYTES + len(part)
    body.finish(usage)


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target for target in (heads, bodies, answers, framing, taps)
}


def _path_of(target: bytes) -> str:
    path = target.partition(b"?")[0].decode("latin-1")
    if not path.startswith("/"):
        path = "/" + path.partition("://")[2].partition("/")[2]
    return path


def _is_relayable(message: Message) -> bool:
    try:
        facts = read_facts(PATH, message.body)
        if _path_of(message.first[1]) in MARKED:  # type: ignore[index]
            ceiling_of(None, facts.body, None)
        return facts.model in ("", "tiny")
    except (InvalidJsonError, InvalidFieldError):
        return False


def _as_relayed(body: bytes) -> bytes:
    facts = read_facts(PATH, body)
    members = {} if facts.model else {"model": b'"tiny"'}
    return b"".join(amend((body,), facts, members | ({"priority": b"0"} if "priority" in facts.body else {})))


def _without_ids(sent: list[bytes]) -> list[list[bytes]]:
    return [[line for line in item.split(b"\r\n") if not line.startswith(b"x-request-id: req-")] for item in sent]


def _check_answers(answered: bytes) -> None:
    while answered:
        if answered == b"HTTP/1.1 100 Continue\r\n\r\n":
            return
        reading = response_in(answered, ends=False)
        assert reading.messages, reading.fault
        assert reading.messages[0].first != 500, reading.messages[0].body
        answered = reading.rest


class _Members(tuple[tuple[str, Any], ...]):
    """An object's members, doubles and all."""

    __slots__ = ()


def _members(text: bytes) -> Any:
    return json.loads(text, object_pairs_hook=_Members, parse_float=str, parse_int=str)


def _is_enveloped(body: bytes, sent_bytes: int) -> bool:
    if sent_bytes > 100_000:
        return True
    error = json.loads(body)["error"]
    return isinstance(error, dict)


def _has_error_event(body: bytes) -> bool:
    """Whether a stream ends in the gateway's own error: broken off, or of an engine that failed after keep-alives."""
    return any(b'"code":"' + code + b'"}}' in body for code in (b"stream_broken", b"bad_engine_response"))


def _check_same(ours: Reading, theirs: Reading) -> None:
    """The engine's answer is whole, or a stream that stated its end before it broke: then its beginning, with that end.

    How much of the part that breaks is passed on depends on how the network cuts it.
    """
    [other] = theirs.messages or [theirs.broken]
    assert other is not None, theirs.fault
    assert ours.messages[0].first == other.first
    body = ours.messages[0].body
    if theirs.messages:
        assert body == other.body
    else:
        assert other.body.startswith(body)
        events = events_in(body + b"\n\n")
        assert events.is_done or events.has_error is not False or states_end(body), theirs.fault


def _framed(parts: list[bytes]) -> tuple[int, bytes, bool] | None:
    framer = ChunkedFramer()
    taken, body = 0, b""
    try:
        for part in parts:
            used = framer.feed(part)
            taken += used
            body += framer.payload
            if used < len(part):
                break
    except FramingError:
        return None
    return taken, body, framer.is_done
