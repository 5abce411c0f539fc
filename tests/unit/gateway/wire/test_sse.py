import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from specpilot.gateway.wire.sse import FRAME_BYTES, TAIL_BYTES, USAGE_BYTES, JsonTap, SseTap
from specpilot.gateway.wire.usage import Usage
from tests.support.read_stream import pieces, read
from tests.support.scripted_engine import DONE, completion, event, speculation, usage_event

frames = st.lists(
    st.one_of(
        st.text(max_size=20).map(lambda text: (event(text), True)),
        st.just((b": keep-alive\n\n", False)),
        st.just((b"event: delta\ndata: {}\n\n", True)),
        st.just((b"id: 1\n\n", False)),
        st.just((b"data:{}\n\n", True)),
        st.just((b"\n\n", False)),
    ),
    max_size=8,
)


@given(frames=frames, cuts=st.lists(st.integers(0, 10_000), max_size=30), end=st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_events_are_counted_however_they_are_split(
    frames: list[tuple[bytes, bool]], cuts: list[int], end: bytes
) -> None:
    data = b"".join(frame for frame, _ in frames) + usage_event(11, 2.75) + DONE
    data = data.replace(b"\n", end)
    tap = SseTap()
    usage = read(tap, *pieces(data, cuts))
    assert tap.deltas == sum(has_data for _, has_data in frames) + 1
    assert tap.is_done
    assert tap.is_between_events == (end != b"\r")  # a line feed may follow
    assert not tap.has_error
    assert usage.output_tokens == 11
    assert usage.input_tokens == 3
    assert usage.acceptance_length == 2.75


@given(st.lists(st.binary(max_size=50), max_size=20))
def test_no_bytes_are_too_odd(parts: list[bytes]) -> None:
    read(SseTap(), *parts)
    read(JsonTap(), *parts)


def test_feed_says_how_many_events_ended() -> None:
    tap = SseTap()
    assert tap.feed(event("a")[:10]) == 0
    assert not tap.is_between_events
    assert tap.feed(event("a")[10:] + event("b")) == 2
    assert tap.feed(DONE) == 0
    assert tap.is_between_events


def test_text_cannot_imitate_usage() -> None:
    lie = '"usage":{"completion_tokens":99},"speculative_decoding":{"mean_acceptance_length":9}'
    assert read(SseTap(), event(lie)).output_tokens is None
    found = read(JsonTap(), completion(lie, output_tokens=3, acceptance_length=1.5))
    assert (found.output_tokens, found.acceptance_length) == (3, 1.5)


def test_a_value_cannot_imitate_usage() -> None:
    body = completion(output_tokens=3)[:-1] + b',"prompt_logprobs":[{"5":{"decoded_token":"usage"}}]}'
    assert read(JsonTap(), body).output_tokens == 3
    assert read(JsonTap(), b'{"choices":[{"message":{"content":"usage"}}]}').output_tokens is None
    assert read(SseTap(), usage_event(4), event("usage")).output_tokens == 4


def test_null_usage_is_unknown_and_does_not_replace_what_was_said() -> None:
    null = b'data: {"choices":[],"usage":null}\n\n'
    assert read(SseTap(), null).output_tokens is None
    assert read(SseTap(), usage_event(4), null).output_tokens == 4


def test_other_apis_say_it_otherwise() -> None:
    responses = b'event: response.completed\ndata: {"response":{"usage":{"input_tokens":5,"output_tokens":6}}}\n\n'
    assert read(SseTap(), responses).output_tokens == 6
    messages = b'event: message_delta\ndata: {"type":"message_delta","usage": {"output_tokens": 15}}\n\n'
    assert read(SseTap(), messages).output_tokens == 15
    start = b'event: message_start\ndata: {"message":{"usage":{"input_tokens":3,"output_tokens":2}}}\n\n'
    assert read(SseTap(), start, messages).output_tokens == 15
    assert read(JsonTap(), b'{"usage":{"input_tokens":3,"output_tokens":2}}').output_tokens == 2
    assert read(JsonTap(), b'{"data":[],"usage":{"prompt_tokens":5,"total_tokens":5}}').output_tokens is None


@pytest.mark.parametrize("length", ["null", '"x"', "--", "1e", "1e999", "{}"])
def test_an_odd_acceptance_length_is_unknown(length: str) -> None:
    text = (
        '{"usage":{"completion_tokens":1},"metrics":{"speculative_decoding":{"mean_acceptance_length":' + length + "}}}"
    )
    found = read(JsonTap(), text.encode())
    assert (found.output_tokens, found.acceptance_length) == (1, None)


def test_an_error_event_is_noticed() -> None:
    tap = SseTap()
    read(tap, event("a"), b'data: {"error": {"message": "x"}}\n\n')
    assert tap.has_error
    assert tap.deltas == 2


def test_a_named_event_too_long_to_keep_is_counted_and_its_usage_found() -> None:
    frame = b'event: response.completed\ndata: {"response":{"output":"%s","usage":{"output_tokens":6}}}\n\n' % (
        b"x" * 3 * FRAME_BYTES
    )
    tap = SseTap()
    assert read(tap, *pieces(frame, list(range(0, 3 * FRAME_BYTES, 16_000)))).output_tokens == 6
    assert tap.deltas == 1


def test_memory_is_bounded() -> None:
    tap = SseTap()
    for _ in range(200):
        tap.feed(b"data: " + b"x" * 10_000)
    assert len(tap._rest) <= FRAME_BYTES + 10_006
    tap.feed(b"\n\n")
    assert tap.deltas == 1
    body = JsonTap()
    for _ in range(200):
        body.feed(b'"usage":{' + b"x" * 30_000)
    assert sum(map(len, body._parts)) <= 2 * TAIL_BYTES + 30_009
    assert len(body._usage) == USAGE_BYTES


@given(
    before=st.integers(0, 3 * TAIL_BYTES),
    between=st.integers(0, 3 * TAIL_BYTES),
    cuts=st.lists(st.integers(0, 200_000), max_size=12),
)
def test_usage_before_a_long_end_is_found_however_the_body_is_split(before: int, between: int, cuts: list[int]) -> None:
    usage = {"prompt_tokens": 7, "total_tokens": 49, "completion_tokens": 42, "prompt_tokens_details": None}
    plain = {
        "choices": [{"message": {"content": "x" * before}, "logprobs": {"content": [{"token": "usage"}]}}],
        "usage": usage,
        "prompt_token_ids": [1] * (between // 3),
        "prompt_text": '"usage": {"completion_tokens": 9}',
        "metrics": {"speculative_decoding": speculation(2.5)},
    }
    found = read(JsonTap(), *pieces(json.dumps(plain).encode(), cuts))
    assert (found.input_tokens, found.output_tokens, found.acceptance_length) == (7, 42, 2.5)


def test_usage_at_the_beginning_of_a_rerank_is_found() -> None:
    results = [{"index": at, "document": {"text": "x" * 500}, "relevance_score": 0.5} for at in range(200)]
    plain = {"id": "r", "model": "tiny", "usage": {"prompt_tokens": 9, "total_tokens": 9}, "results": results}
    body = json.dumps(plain, separators=(",", ":")).encode()
    assert read(JsonTap(), *pieces(body, list(range(0, len(body), 1009)))).input_tokens == 9
    assert read(JsonTap(), body).total_tokens == 9


def test_usage_counts_where_it_belongs_only() -> None:
    echoed = b'"tools":[{"properties":{"usage":{"prompt_tokens":1,"completion_tokens":0}}}]'
    own = b'"usage":{"prompt_tokens":500,"completion_tokens":70}'
    for body in (b"{%s,%s}" % (own, echoed), b"{%s,%s}" % (echoed, own)):
        usage, tap = Usage(), JsonTap()
        tap.feed(body)
        tap.finish(usage)
        assert (usage.input_tokens, usage.output_tokens) == (500, 70)
        events = SseTap()
        events.feed(b"data: " + body + b"\n\n")
        usage = Usage()
        events.finish(usage)
        assert (usage.input_tokens, usage.output_tokens) == (500, 70)


@pytest.mark.parametrize("size", [16_000, 100_000])
def test_an_event_too_long_to_keep_is_charged_by_its_own_usage_not_by_one_that_was_echoed(size: int) -> None:
    tools = b'"tools":[{"properties":{"usage":{"input_tokens":1,"output_tokens":1},"pad":"%s"}}]' % (b"x" * 1000)
    own = b'"usage":{"input_tokens":500,"input_tokens_details":{"cached_tokens":2},"output_tokens":70}'
    response = b'"output":"%s",%s,%s' % (b"x" * 2 * FRAME_BYTES, tools, own)
    frame = b'event: response.completed\ndata: {"type":"response.completed","response":{%s}}\n\n' % response
    usage = read(SseTap(), *pieces(frame, list(range(0, len(frame), size))))
    assert (usage.input_tokens, usage.output_tokens) == (500, 70)


def test_tokens_are_counted_alike_however_the_events_are_read() -> None:
    events = [event(""), *[event("abcdefgh")] * 100]
    one_by_one, together, mixed = SseTap(), SseTap(), SseTap()
    read(one_by_one, *events)
    read(together, b"".join(events))
    read(mixed, b"".join(events[:2]), *events[2:])
    assert one_by_one.tokens == together.tokens == mixed.tokens == 200


def test_tokens_are_counted_by_events_or_by_their_text_where_that_is_more() -> None:
    plain, merged = SseTap(), SseTap()
    read(plain, event(""), *[event("abcd")] * 100)
    read(merged, event(""), *[event("abcd" * 8)] * 100)
    assert plain.tokens == 101
    assert merged.tokens == 800


json_values = st.recursive(
    st.one_of(st.none(), st.integers(-9, 99), st.text(max_size=8), st.just("usage"), st.just('"usage":{')),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["usage", "a", "prompt_tokens", "completion_tokens", "metrics"]), inner, max_size=3
        ),
    ),
    max_leaves=12,
)
MEMBERS = st.lists(
    st.tuples(st.sampled_from(["id", "choices", "usage", "metrics", "response", "x"]), json_values), max_size=6
)


COUNTS = {"prompt_tokens": 3, "completion_tokens": 5}


@given(members=MEMBERS, is_pretty=st.booleans())
@example(members=[("id", None)] * 4 + [("response", {"usage": {"prompt_tokens": 0}})], is_pretty=False)
@example(members=[("response", {"usage": COUNTS}), ("usage", None)], is_pretty=False)
@example(members=[("response", {"usage": COUNTS}), ("usage", {"prompt_tokens": 1})], is_pretty=False)
def test_usage_is_that_of_the_whole_document_wherever_it_stands(
    members: list[tuple[str, object]], is_pretty: bool
) -> None:
    members = [*members, ("usage", COUNTS)] if len(members) % 2 else members
    text = ("{" + ",".join(f"{json.dumps(key)}:{json.dumps(value)}" for key, value in members) + "}").encode()
    text = text.replace(b",", b" ,\n ") if is_pretty and b'"' not in text else text
    whole, ending = Usage(), Usage()
    whole.read_document(text)
    tap = JsonTap()
    tap.feed(text)
    tap.finish(ending)
    for name in ("input_tokens", "output_tokens", "acceptance_length"):
        assert getattr(ending, name) == getattr(whole, name)


@pytest.mark.parametrize("frame", [b'data:\n {"type":"error"}\n\n', b'data: {\n"type":"error"}\n\n'])
def test_a_line_without_a_fields_name_is_no_data(frame: bytes) -> None:
    tap = SseTap()
    tap.feed(b'data: {"id":"a"}\n\n' + frame)
    assert not tap.has_error
