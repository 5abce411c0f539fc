"""What is sent of a stream and what is read in it, however it is cut and whatever ends its lines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specpilot.gateway.wire.sse import FRAME_BYTES, EventStream
from tests.support.read_stream import passed, pieces, read
from tests.support.scripted_engine import DONE, event, usage_event
from tests.unit.gateway.wire.test_event_frame import ALIVE, ENDS, OPENINGS

FRAMES: list[tuple[bytes, bool]] = [
    (b": keep-alive\n\n", False),
    (b"event: delta\ndata: {}\n\n", True),
    (b"id: 1\n\n", False),
    (b"data:{}\n\n", True),
    (b"\n\n", False),
]
"""Frames, and whether they have data."""

ends = st.sampled_from(ENDS)
cut_points = st.lists(st.integers(0, 10_000), max_size=30)
frames_of_streams = st.lists(
    st.one_of(st.text(max_size=20).map(lambda text: (event(text), True)), st.sampled_from(FRAMES)), max_size=8
)


@given(frames=frames_of_streams, cuts=cut_points, end=ends)
def test_events_are_counted_however_they_are_split(
    frames: list[tuple[bytes, bool]], cuts: list[int], end: bytes
) -> None:
    data = b"".join(frame for frame, _ in frames) + usage_event(11, 2.75) + DONE
    stream = EventStream()
    usage = read(stream, *pieces(data.replace(b"\n", end), cuts))
    assert stream.deltas == sum(has_data for _, has_data in frames) + 1
    assert (stream.is_done, stream.has_error) == (True, False)
    assert (usage.input_tokens, usage.output_tokens, usage.acceptance_length) == (3, 11, 2.75)


EVENTS = [event("a"), event('say "usage": {}'), event("é"), event("", finish="stop"), *ALIVE[:4]]


@given(
    events=st.lists(st.sampled_from([*EVENTS, *OPENINGS]), max_size=8),
    has_usage=st.booleans(),
    cuts=cut_points,
    end=ends,
    passes_keep_alives=st.booleans(),
)
def test_the_event_with_usage_and_no_other_is_left_out(
    events: list[bytes], has_usage: bool, cuts: list[int], end: bytes, passes_keep_alives: bool
) -> None:
    wanted = (b"".join(events) + DONE).replace(b"\n", end)
    sent = (b"".join(events) + (usage_event(7) if has_usage else b"") + DONE).replace(b"\n", end)
    found = passed(EventStream(strips_usage=True, passes_keep_alives=passes_keep_alives), sent, cuts)
    if passes_keep_alives:  # they overtake what opens a stream
        assert sorted(found) == sorted(wanted)
    else:
        assert found == wanted
    assert sorted(passed(EventStream(passes_keep_alives=passes_keep_alives), sent, cuts)) == sorted(sent)


@pytest.mark.parametrize("is_first", [True, False])
def test_usage_is_left_out_beside_a_comment_with_other_line_ends(is_first: bool) -> None:
    parts = [b": ping\r\n\r\n", usage_event(7)][:: 1 if is_first else -1]
    stream = b"".join([event("a"), *parts, DONE])
    assert passed(EventStream(strips_usage=True), stream, []) == event("a") + b": ping\r\n\r\n" + DONE


@pytest.mark.parametrize("frame", [b"id: 7\n%s", b"%s\nid: 7", b"event: message\nretry: 5\n%s\nid: 8", b"%s\ndata"])
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("data", [b"data: ", b"data:"])
def test_usage_is_left_out_whatever_the_order_of_the_fields(frame: bytes, end: bytes, data: bytes) -> None:
    usage = usage_event(7).rstrip(b"\n").replace(b"data: ", data)
    for line in (usage, usage.replace(b',"usage"', b",\n" + data + b'"usage"')):
        whole = (event("a") + frame % line + b"\n\n" + DONE).replace(b"\n", end)
        for cut in range(len(whole)):
            found = passed(EventStream(strips_usage=True), whole, [cut])
            # The LF of a CRLF that was cut behind the frame is sent, as a blank line.
            assert found.replace(DONE.replace(b"\n", end), b"").strip() == event("a").strip()


@pytest.mark.parametrize(
    "frame",
    [b'data: {"choices":[{}],"usage":{}}\nid: 7\n\n', b'id: 7\ndata: {"x":"\\"usage\\""}\n\n', b': "usage"\n\n'],
)
def test_no_other_event_is_left_out(frame: bytes) -> None:
    stream, begin = event("a") + frame + DONE, len(event("a"))
    for cuts in ([], [begin, begin + len(frame)]):
        assert passed(EventStream(strips_usage=True), stream, cuts) == stream


def test_whole_frames_are_sent_at_once_and_no_part_of_one() -> None:
    stream = EventStream(strips_usage=True)
    frames = [event("a"), usage_event(3), DONE]
    assert [stream.feed(frame) for frame in frames] == [event("a"), b"", DONE]
    half = len(event("b")) // 2
    assert stream.feed(event("a") + event("b")[:half]) == event("a")
    assert not stream.is_within_frame
    assert stream.feed(event("b")[half:] + b": ping\n") == event("b") + b": ping\n"
    assert stream.rest() == b""


@given(st.lists(st.sampled_from(ALIVE + OPENINGS), max_size=8), cut_points)
def test_keep_alives_overtake_openings_however_they_are_cut(frames: list[bytes], cuts: list[int]) -> None:
    stream = EventStream(passes_keep_alives=True)
    alive = b"".join([stream.feed(part) for part in pieces(b"".join(frames), cuts)])
    lines = [b"".join(frame for frame in frames if (frame in ALIVE) == is_alive) for is_alive in (True, False)]
    # A blank line goes on with what stands before or behind it, which makes no difference.
    assert [text.replace(b"\n\n", b"\n").strip() for text in (alive, stream.rest())] == [
        text.replace(b"\n\n", b"\n").strip() for text in lines
    ]


def test_too_much_before_the_first_content_is_sent() -> None:
    stream = EventStream()
    opening = b'event: message_start\ndata: {"x":"%s"}\n\n' % (b"x" * 30_000)
    assert [stream.feed(opening), stream.feed(opening)] == [b"", b""]
    assert stream.feed(opening) == opening * 3
    assert (stream.has_begun, stream.deltas - stream.openings) == (True, 0)


def test_text_cannot_imitate_usage() -> None:
    lie = '"usage":{"completion_tokens":99},"speculative_decoding":{"mean_acceptance_length":9}'
    assert read(EventStream(), event(lie)).output_tokens is None
    assert read(EventStream(), usage_event(4), event("usage")).output_tokens == 4


def test_null_usage_is_unknown_and_does_not_replace_what_was_said() -> None:
    null = b'data: {"choices":[],"usage":null}\n\n'
    assert read(EventStream(), null).output_tokens is None
    assert read(EventStream(), usage_event(4), null).output_tokens == 4


def test_other_apis_say_it_otherwise() -> None:
    responses = b'event: response.completed\ndata: {"response":{"usage":{"input_tokens":5,"output_tokens":6}}}\n\n'
    assert read(EventStream(), responses).output_tokens == 6
    messages = b'event: message_delta\ndata: {"type":"message_delta","usage": {"output_tokens": 15}}\n\n'
    assert read(EventStream(), messages).output_tokens == 15
    start = b'event: message_start\ndata: {"message":{"usage":{"input_tokens":3,"output_tokens":2}}}\n\n'
    assert read(EventStream(), start, messages).output_tokens == 15


def test_usage_counts_where_it_belongs_only() -> None:
    echoed = b'"tools":[{"properties":{"usage":{"prompt_tokens":1,"completion_tokens":0}}}]'
    own = b'"usage":{"prompt_tokens":500,"completion_tokens":70}'
    for body in (b"{%s,%s}" % (own, echoed), b"{%s,%s}" % (echoed, own)):
        usage = read(EventStream(), b"data: " + body + b"\n\n")
        assert (usage.input_tokens, usage.output_tokens) == (500, 70)


def test_an_error_event_is_noticed_and_whether_it_is_the_first_content() -> None:
    error = b'data: {"error": {"message": "x"}}\n\n'
    opened, begun = EventStream(), EventStream()
    read(opened, *OPENINGS, error)
    read(begun, *OPENINGS, event("a"), error)
    for stream in (opened, begun):
        assert stream.has_error
        assert stream.has_failed
    assert (opened.has_failed_first, begun.has_failed_first) == (True, False)


def test_what_opens_a_stream_is_no_content() -> None:
    stream = EventStream()
    for at, frame in enumerate([b": comment\n\n", *OPENINGS, b"\n\n"]):
        stream.feed(frame)
        assert stream.deltas == stream.openings == min(at, len(OPENINGS))
    stream.feed(event("a"))
    stream.feed(b"event: ping\ndata: {}\n\n")  # Anthropic's ping may come at any time
    assert (stream.deltas, stream.openings) == (7, 5)


@pytest.mark.parametrize(
    "frame",
    [
        b"event: message_stop\ndata: {%b}\n\n",
        b"event: response.completed\ndata: {%b}\n\n",
        b'data: {"type":"response.completed","response":{"output":"%b"}}\n\n',
    ],
)
def test_a_frame_too_long_to_hold_is_sent_as_it_comes_and_read_by_its_beginning_and_end(frame: bytes) -> None:
    stream, frame = EventStream(), frame % (b"x" * 3 * FRAME_BYTES)
    stream.feed(event("a"))
    sent = b""
    for part in pieces(frame, list(range(0, len(frame), 9000))):
        sent += stream.feed(part)
        assert len(stream._rest) <= FRAME_BYTES + 1
        assert stream.is_within_frame == (FRAME_BYTES < len(sent) < len(frame))
    assert sent == frame
    assert (stream.is_done, stream.deltas) == (True, 2)


@pytest.mark.parametrize("size", [16_000, 100_000])
def test_an_event_too_long_to_keep_is_charged_by_its_own_usage_not_by_one_that_was_echoed(size: int) -> None:
    tools = b'"tools":[{"properties":{"usage":{"input_tokens":1,"output_tokens":1},"pad":"%s"}}]' % (b"x" * 1000)
    own = b'"usage":{"input_tokens":500,"input_tokens_details":{"cached_tokens":2},"output_tokens":70}'
    response = b'"output":"%s",%s,%s' % (b"x" * 2 * FRAME_BYTES, tools, own)
    frame = b'event: response.completed\ndata: {"type":"response.completed","response":{%s}}\n\n' % response
    usage = read(EventStream(), *pieces(frame, list(range(0, len(frame), size))))
    assert (usage.input_tokens, usage.output_tokens) == (500, 70)


def test_tokens_are_counted_by_events_or_by_their_text_where_that_is_more_however_they_are_read() -> None:
    events = [event(""), *[event("abcdefgh")] * 100]
    for parts in (events, [b"".join(events)], [b"".join(events[:2]), *events[2:]]):
        stream = EventStream()
        read(stream, *parts)
        assert stream.tokens == 200
    plain = EventStream()
    read(plain, event(""), *[event("abcd")] * 100)
    assert plain.tokens == 101


def test_what_repeats_text_and_what_opens_a_stream_is_no_text() -> None:
    stream = EventStream()
    delta = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"%b"}\n\n'
    long = b'event: %b\ndata: {"text":"' + b"x" * 40_000 + b'"}\n\n'
    read(stream, long % b"response.created", delta % b"ab", b"event: ping\ndata: {}\n\n", delta % b"abcdabcdab")
    read(stream, long % b"response.output_text.done")
    assert stream.tokens == stream.deltas == 5
    read(stream, *[delta % (b"abcd" * 8)] * 10)
    assert stream.tokens == (8 + 10 * 30) // 4
