"""What opens a stream and what ends one is known by the event's name or type."""

import pytest

from specpilot.gateway.wire.sse import FRAME_BYTES, SseTap
from tests.support.read_stream import pieces, read
from tests.support.scripted_engine import event

OPENINGS = [
    b'event: response.created\ndata: {"response":{}}\n\n',
    b'event:response.in_progress\r\ndata: {"response":{}}\r\n\r\n',
    b"event: ping\ndata: {}\n\n",
    b'event: message_start\ndata: {"message":{"usage":{"input_tokens":3}}}\n\n',
]


def test_what_opens_a_stream_is_no_content() -> None:
    tap = SseTap()
    for at, frame in enumerate([b": comment\n\n", *OPENINGS, b"\n\n"]):
        tap.feed(frame)
        assert tap.deltas == tap.openings == min(at, len(OPENINGS))
    tap.feed(event("a"))
    tap.feed(OPENINGS[2])  # Anthropic's ping may come at any time
    assert (tap.deltas, tap.openings) == (6, 4)


def test_what_repeats_text_and_what_opens_a_stream_is_no_text() -> None:
    tap = SseTap()
    delta = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"%b"}\n\n'
    long = b'event: %b\ndata: {"text":"' + b"x" * 40_000 + b'"}\n\n'
    read(tap, long % b"response.created", delta % b"ab", b"event: ping\ndata: {}\n\n", delta % b"abcdabcdab")
    read(tap, long % b"response.output_text.done")
    assert tap.tokens == tap.deltas == 5
    read(tap, *[delta % (b"abcd" * 8)] * 10)
    assert tap.tokens == (8 + 10 * 30) // 4


def test_an_error_behind_what_opens_a_stream_is_its_first_content() -> None:
    error = b'event: error\ndata: {"error":{"message":"x"}}\n\n'
    opened, begun = SseTap(), SseTap()
    read(opened, *OPENINGS, error)
    read(begun, *OPENINGS, event("a"), error)
    assert (opened.has_failed_first, begun.has_failed_first) == (True, False)
    assert opened.has_failed
    assert begun.has_failed


@pytest.mark.parametrize(
    "frame",
    [
        b"event: message_stop\ndata: {%b}\n\n",
        b"event: response.completed\ndata: {%b}\n\n",
        b"event: response.incomplete\ndata: {%b}\n\n",
        b'data: {"type":"response.completed","response":{"output":"%b"}}\n\n',
    ],
)
def test_streams_without_a_marker_end_by_an_event_however_long(frame: bytes) -> None:
    tap, frame = SseTap(), frame % (b"x" * 3 * FRAME_BYTES)
    tap.feed(event("a"))
    assert not tap.is_done
    for part in pieces(frame, list(range(0, len(frame), 9000))):
        tap.feed(part)
    assert tap.is_done
    assert tap.deltas == 2


LASTS = {
    b"response.completed": False,
    b"response.incomplete": False,
    b"message_stop": False,
    b"response.failed": True,
    b"error": True,
}


@pytest.mark.parametrize("name", LASTS)
@pytest.mark.parametrize(
    "frame",
    [
        b'event: %s\ndata: {"type":"%s","x":{}}\n\n',
        b'data: {"x":{}}\nevent: %s\n: %s\n\n',
        b'id: 1\ndata: {"id":1}\nretry: 1\nevent: %s\n: %s\n\n',
        b'id: 1\ndata: {"type":"%s","x":"%s"}\n\n',
        b'data:{ "type" : "%s","x":"%s"}\nid: 1\n\n',
    ],
)
def test_the_last_event_of_any_api_is_known_by_its_name_or_type(frame: bytes, name: bytes) -> None:
    for end in (b"\n", b"\r\n", b"\r"):
        tap = SseTap()
        tap.feed((event("a") + frame % (name, name)).replace(b"\n", end))
        assert (tap.is_done or tap.has_error, tap.has_error) == (True, LASTS[name])
        assert tap.deltas == 2


def test_text_in_data_names_no_event() -> None:
    tap = SseTap()
    for frame in (
        b'data: {"x":"event: error"}\n\n',
        b'data: {"x":{"type":"error"}}\n\n',
        b": event: error\ndata: {}\n\n",
    ):
        tap.feed(frame)
    assert (tap.has_error, tap.is_done, tap.deltas) == (False, False, 3)


def test_what_opens_a_stream_is_known_by_its_type_too() -> None:
    tap = SseTap()
    tap.feed(b'data: {"type":"response.created","response":{}}\n\ndata: {}\nevent: message_start\n\n')
    assert tap.deltas == tap.openings == 2
