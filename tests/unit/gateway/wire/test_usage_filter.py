from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specpilot.gateway.wire.usage_filter import UsageFilter
from tests.support.scripted_engine import DONE, event, usage_event

EVENTS = [event("a"), event('say "usage": {}'), event("é"), event("", finish="stop")]


def filtered(stream: bytes, cuts: list[int]) -> tuple[bytes, list[bytes]]:
    """Return what passes of `stream` when it is cut at `cuts`: all of it, and by reads."""
    usage_filter = UsageFilter()
    borders = sorted({0, len(stream), *(cut % len(stream) for cut in cuts)})
    out = [usage_filter.feed(stream[start:end]) for start, end in pairwise(borders)]
    out.append(usage_filter.rest())
    return b"".join(out), out


@given(
    st.lists(st.sampled_from([*EVENTS, b": ping\n\n"]), max_size=8),
    st.booleans(),
    st.lists(st.integers(0, 10_000), max_size=12),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
)
def test_the_event_with_usage_and_no_other_is_taken_out(
    events: list[bytes], has_usage: bool, cuts: list[int], end: bytes
) -> None:
    wanted = (b"".join(events) + DONE).replace(b"\n", end)
    sent = (b"".join(events) + (usage_event(7) if has_usage else b"") + DONE).replace(b"\n", end)
    assert filtered(sent, cuts)[0] == wanted


@pytest.mark.parametrize("is_first", [True, False])
def test_usage_is_taken_out_beside_a_comment_with_other_line_ends(is_first: bool) -> None:
    parts = [b": ping\r\n\r\n", usage_event(7)][:: 1 if is_first else -1]
    stream = b"".join([event("a"), *parts, DONE])
    assert filtered(stream, [])[0] == event("a") + b": ping\r\n\r\n" + DONE


@pytest.mark.parametrize(
    "frame",
    [
        b"id: 7\n%s",
        b"%s\nid: 7",
        b"event: message\nretry: 5\n%s\n: comment",
        b"\n: comment\n%s",
        b"%s\ndata",
    ],
)
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("data", [b"data: ", b"data:"])
def test_usage_is_taken_out_whatever_the_order_of_the_fields(frame: bytes, end: bytes, data: bytes) -> None:
    usage = usage_event(7).rstrip(b"\n").replace(b"data: ", data)
    for line in (usage, usage.replace(b',"usage"', b",\n" + data + b'"usage"')):
        whole = (event("a") + frame % line + b"\n\n" + DONE).replace(b"\n", end)
        for cut in range(len(whole)):
            wanted = (event("a") + DONE).replace(b"\n", end)
            assert filtered(whole, [cut])[0].replace(end * 3, end * 2) == wanted


@pytest.mark.parametrize(
    "frame",
    [b'data: {"choices":[{}],"usage":{}}\nid: 7\n\n', b'id: 7\ndata: {"x":"\\"usage\\""}\n\n', b': "usage"\n\n'],
)
def test_no_other_event_is_taken_out(frame: bytes) -> None:
    stream = event("a") + frame + DONE
    assert filtered(stream, [])[0] == stream


def test_events_that_came_whole_do_not_wait() -> None:
    parts = [event("a"), usage_event(3), DONE]
    first = len(parts[0])
    _, out = filtered(b"".join(parts), [first, first + len(parts[1])])
    assert out == [event("a"), b"", DONE, b""]
