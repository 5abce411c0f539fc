"""What keeps a stream alive is found however it is cut, and nothing of the rest is lost or moved."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specpilot.gateway.wire.keep_alive import KeepAlives, keeps_alive

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
OPENING = [
    b'event: message_start\ndata: {"type":"message_start"}\n\n',
    b'event: response.created\ndata: {"type":"response.created","response":{"id":"ping"}}\n\n',
    b'id: 1\nevent: response.queued\ndata: {"type":"response.queued"}\n\n',
    b'data: {"type":"ping","content":{"a":1}}\n\n',
    b"data:\nid: 7\ndata: a\n\n",
]
LONG = [frame for frame in ALIVE + OPENING if frame.count(b"\n") > 2]
"""Frames whose first line shows which end lines have, also where that is a return alone."""


@pytest.mark.parametrize("frame", ALIVE)
def test_what_keeps_alive(frame: bytes) -> None:
    assert keeps_alive(frame)
    assert keeps_alive(frame.replace(b"\n", b"\r\n"))
    assert keeps_alive(frame.replace(b"\n", b"\r"))


@pytest.mark.parametrize(
    "frame", [*OPENING, b"data: [DONE]\n\n", b'data: {"id":"ping"}\n\n', b"data\n\ndata: x\n\n"[6:]]
)
def test_what_does_not(frame: bytes) -> None:
    assert not keeps_alive(frame)
    assert not keeps_alive(frame.replace(b"\n", b"\r\n"))
    assert not keeps_alive(frame.replace(b"\n", b"\r"))


@given(
    st.one_of(
        st.tuples(st.lists(st.sampled_from(ALIVE + OPENING), max_size=8), st.sampled_from([b"\n", b"\r\n"])),
        st.tuples(st.lists(st.sampled_from(LONG), max_size=8), st.just(b"\r")),
    ),
    st.lists(st.integers(0, 2000), max_size=20),
)
def test_all_of_it_goes_on_once_and_in_order(stream: tuple[list[bytes], bytes], cuts: list[int]) -> None:
    frames = [frame.replace(b"\n", stream[1]) for frame in stream[0]]
    data = b"".join(frames)
    at = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    subject = KeepAlives()
    alive = b"".join([subject.feed(data[start:end]) for start, end in pairwise(at)])
    kept = [frame for frame in frames if keeps_alive(frame)]
    assert alive == b"".join(kept)
    others = b"".join(frame for frame in frames if not keeps_alive(frame))
    assert subject.size == len(others)
    assert subject.rest() == others
    assert (subject.size, subject.rest()) == (0, b"")


def test_the_blank_line_behind_a_comment_goes_on_with_it_and_is_no_part_of_the_next_frame() -> None:
    subject = KeepAlives()
    assert subject.feed(b": a\n") == b": a\n"
    assert subject.feed(b"\n" + OPENING[0]) == b"\n"
    assert subject.rest() == OPENING[0]


def test_a_comment_that_a_return_ends_goes_on_with_what_follows_it() -> None:
    subject = KeepAlives()
    assert subject.feed(b": a\r") == b""  # a line feed may follow
    assert subject.feed(b"\r") == b": a\r\r"
    assert subject.feed(b": b\r\r") == b": b\r\r"
    assert subject.size == 0
