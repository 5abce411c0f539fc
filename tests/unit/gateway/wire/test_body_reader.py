"""The usage in a JSON body, wherever it stands and however the body is cut."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from specpilot.gateway.wire.body_reader import TAIL_BYTES, USAGE_BYTES, JsonBody
from specpilot.gateway.wire.usage import Usage
from tests.support.read_stream import pieces, read
from tests.support.scripted_engine import completion, speculation

SPECULATION = b'"metrics":{"speculative_decoding":{"mean_acceptance_length":%s}}'


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (completion(output_tokens=3, acceptance_length=1.5), (3, 3, 1.5)),
        (
            completion(
                '"usage":{"completion_tokens":99},"speculative_decoding":{"mean_acceptance_length":9}', output_tokens=3
            ),
            (3, 3, None),
        ),
        (completion()[:-1] + b',"prompt_logprobs":[{"5":{"decoded_token":"usage"}}]}', (3, 2, None)),
        (b'{"choices":[{"message":{"content":"usage"}}]}', (None, None, None)),
        (b'{"usage":{"input_tokens":3,"output_tokens":2}}', (3, 2, None)),
        (b'{"data":[],"usage":{"prompt_tokens":5,"total_tokens":5}}', (5, None, None)),
        *(
            (b'{"usage":{"completion_tokens":1},%s}' % (SPECULATION % length), (None, 1, None))
            for length in (b"null", b'"x"', b"--", b"1e", b"1e999", b"-1", b"1e15", b"1" * 400, b"{}")
        ),
        *(
            (b'{"usage":{"prompt_tokens":%s,"completion_tokens":1}}' % count, (None, 1, None))
            for count in (b"18446744073709551615", b"1" * 400, b"-1", b"1.5")
        ),
    ],
)
def test_usage_and_acceptance_length(body: bytes, wanted: tuple[object, ...]) -> None:
    found = read(JsonBody(), body)
    assert (found.input_tokens, found.output_tokens, found.acceptance_length) == wanted


@pytest.mark.parametrize("depth", [100, 3000])
def test_usage_is_read_without_fail_however_deep_it_is_nested(depth: int) -> None:
    usage = b'"usage":{"details":%s%s,"prompt_tokens":3,"completion_tokens":2}' % (b"[" * depth, b"]" * depth)
    found = read(JsonBody(), b'{"text":"%s",%s}' % (b"x" * 3 * TAIL_BYTES, usage))
    assert (found.input_tokens, found.output_tokens) in ((3, 2), (None, None))


def test_memory_is_bounded() -> None:
    body = JsonBody()
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
    found = read(JsonBody(), *pieces(json.dumps(plain).encode(), cuts))
    assert (found.input_tokens, found.output_tokens, found.acceptance_length) == (7, 42, 2.5)


def test_usage_at_the_beginning_of_a_rerank_is_found() -> None:
    results = [{"index": at, "document": {"text": "x" * 500}, "relevance_score": 0.5} for at in range(200)]
    plain = {"id": "r", "model": "tiny", "usage": {"prompt_tokens": 9, "total_tokens": 9}, "results": results}
    body = json.dumps(plain, separators=(",", ":")).encode()
    assert read(JsonBody(), *pieces(body, list(range(0, len(body), 1009)))).input_tokens == 9
    assert read(JsonBody(), body).total_tokens == 9


COUNTS = {"prompt_tokens": 3, "completion_tokens": 5}
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
    st.tuples(st.sampled_from(["id", "choices", "usage", "metrics", "response", "tools"]), json_values), max_size=6
)


@given(members=MEMBERS, is_pretty=st.booleans())
@example(members=[("id", None)] * 4 + [("response", {"usage": {"prompt_tokens": 0}})], is_pretty=False)
@example(members=[("response", {"usage": COUNTS}), ("usage", None)], is_pretty=False)
@example(members=[("response", {"usage": COUNTS}), ("usage", {"prompt_tokens": 1})], is_pretty=False)
@example(members=[("usage", COUNTS), ("tools", [{"properties": {"usage": {"prompt_tokens": 1}}}])], is_pretty=False)
def test_usage_is_that_of_the_whole_document_wherever_it_stands(
    members: list[tuple[str, object]], is_pretty: bool
) -> None:
    members = [*members, ("usage", COUNTS)] if len(members) % 2 else members
    text = ("{" + ",".join(f"{json.dumps(key)}:{json.dumps(value)}" for key, value in members) + "}").encode()
    text = text.replace(b",", b" ,\n ") if is_pretty and b'"' not in text else text
    whole, ending = Usage(), read(JsonBody(), text)
    whole.read_document(text)
    for name in ("input_tokens", "output_tokens", "acceptance_length"):
        assert getattr(ending, name) == getattr(whole, name)
