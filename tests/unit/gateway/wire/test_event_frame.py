"""What one frame of an event stream is, whatever ends its lines."""

import pytest

from specpilot.gateway.wire.event_frame import END, FAILED, keeps_alive, stated_end, with_line_feeds
from specpilot.gateway.wire.sse import EventStream
from tests.support.scripted_engine import event

ALIVE = [
    b": keep-alive\n\n",
    b":\n\n",
    b": a\n: b\n\n",
    b"event: ping\ndata: {}\n\n",
    b'event:ping\ndata: {"type": "ping"}\n\n',
    b'event: keepalive\ndata: {"type":"keepalive","sequence_number":1}\n\n',
    b"event: heartbeat\n\n",
    b'data: {"type":"ping"}\n\n',
    b"retry: 10\n\n",
    b"id: 7\n\n",
    b"data:\n\n",
    b"data\n\n",
    b"dataset: 1\n\n",  # a field of another name is none
    b"data: {}\nevent: ping\n\n",
    b'data: {"type":"ping"}\nid: 7\n\n',
    b"data:\nid: 7\nretry: 1\n\n",
]
OPENINGS = [
    b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":3}}}\n\n',
    b'event: response.created\ndata: {"type":"response.created","response":{"id":"ping"}}\n\n',
    b'id: 1\nevent: response.queued\ndata: {"type":"response.queued"}\n\n',
    b'data: {"type":"response.in_progress","response":{}}\n\n',
    b"data: {}\nevent: message_start\n\n",
]
CONTENT = [
    event("a"),
    b"data: [DONE]\n\n",
    b'data: {"id":"ping"}\n\n',
    b"data: x\n\n",
    b'data: {"type":"ping","content":{"a":1}}\n\n',
    b"data:\nid: 7\ndata: a\n\n",
]
ENDS = [b"\n", b"\r\n", b"\r"]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("frame", [*ALIVE, *OPENINGS, *CONTENT])
def test_a_keep_alive_an_opening_and_content(frame: bytes, end: bytes) -> None:
    sent = frame.replace(b"\n", end)
    assert keeps_alive(with_line_feeds(sent)) == (frame in ALIVE)
    stream = EventStream(passes_keep_alives=True)
    assert stream.feed(sent) == (b"" if frame in OPENINGS else sent)
    assert stream.has_begun == (frame in CONTENT)
    assert stream.rest() == (sent if frame in OPENINGS else b"")


LASTS = {
    b"response.completed": END,
    b"response.incomplete": END,
    b"response.cancelled": END,
    b"message_stop": END,
    b"response.failed": FAILED,
    b"error": FAILED,
}


@pytest.mark.parametrize("end", ENDS)
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
def test_the_last_event_of_any_api_is_known_by_its_name_or_type(frame: bytes, name: bytes, end: bytes) -> None:
    frame %= (name, name)
    stream = EventStream()
    stream.feed((event("a") + frame).replace(b"\n", end))
    assert (stream.is_done, stream.has_error) == (LASTS[name] == END, LASTS[name] == FAILED)
    assert stream.deltas == 2
    assert stated_end(frame, has_one_choice=True) == LASTS[name]


@pytest.mark.parametrize(
    "frame",
    [
        b'data: {"x":"event: error"}\n\n',
        b'data: {"x":{"type":"error"}}\n\n',
        b": event: error\ndata: {}\n\n",
        b'data:\n {"type":"error"}\n\n',
        b'data: {\n"type":"error"}\n\n',
    ],
)
def test_text_in_data_and_lines_of_other_fields_name_no_event(frame: bytes) -> None:
    stream = EventStream()
    stream.feed(event("a") + frame)
    assert (stream.has_error, stream.is_done, stream.deltas) == (False, False, 2)
