import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidFieldError, InvalidJsonError
from gateway.wire import COPY_LIMIT_BYTES, RequestFacts, mark, read_facts

PATH = "/v1/chat/completions"


def marked(body: bytes, traffic_class: str = "code") -> bytes:
    return b"".join(mark(body, read_facts(PATH, body), traffic_class))


def facts(**fields: Any) -> RequestFacts:
    return read_facts(PATH, json.dumps({"model": "m", **fields}).encode())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{"model":"m"}', '{"vllm_xargs":{"traffic_class":"code"},"model":"m"}'),
        (' \n{ "model":"m"}', ' \n{"vllm_xargs":{"traffic_class":"code"}, "model":"m"}'),
        ('{"model":"m","vllm_xargs":{}}', '{"model":"m","vllm_xargs":{"traffic_class":"code"}}'),
        ('{"model":"m","vllm_xargs":{ }}', '{"model":"m","vllm_xargs":{"traffic_class":"code" }}'),
        ('{"model":"m","vllm_xargs":{"a":1}}', '{"model":"m","vllm_xargs":{"traffic_class":"code","a":1}}'),
        ('{"model":"m","vllm_xargs":null}', '{"model":"m","vllm_xargs":{"traffic_class":"code"}}'),
        (
            '{"vllm_xargs" : {"traffic_class" : "x", "b":[1,{"traffic_class":2}]} , "model":"m"}',
            '{"vllm_xargs" : {"traffic_class" : "code", "b":[1,{"traffic_class":2}]} , "model":"m"}',
        ),
        (
            '{"vllm_xargs":{"traffic_class":{"x":"}"},"traffic_class":"y"},"model":"m"}',
            '{"vllm_xargs":{"traffic_class":"code","traffic_class":"code"},"model":"m"}',
        ),
        (
            '{"vllm_xargs":{"a":1},"model":"m","vllm_\\u0078args":{"b":-1e5}}',
            '{"vllm_xargs":{"traffic_class":"code","a":1},"model":"m","vllm_\\u0078args":{"traffic_class":"code","b":-1e5}}',
        ),
        ('{"model":"m","vllm_xargs":"no"}', '{"model":"m","vllm_xargs":"no"}'),
        ('{"model":"m","vllm_xargs":[1,"]"]}', '{"model":"m","vllm_xargs":[1,"]"]}'),
        (
            '{"model":"m","messages":[{"content":"{\\"vllm_xargs\\":{}}"}]}',
            '{"vllm_xargs":{"traffic_class":"code"},"model":"m","messages":[{"content":"{\\"vllm_xargs\\":{}}"}]}',
        ),
    ],
)
def test_the_class_goes_into_the_clients_own_bytes(before: str, after: str) -> None:
    assert marked(before.encode()).decode() == after


def test_a_class_name_is_checked_before_it_goes_in() -> None:
    with pytest.raises(ValueError, match="not a class name"):
        mark(b'{"model":"m"}', facts(), 'x","y":"z')


def test_a_large_body_is_not_copied() -> None:
    body = b'{"model":"m","image":"' + b"x" * COPY_LIMIT_BYTES + b'"}'
    parts = mark(body, read_facts(PATH, body), "code")
    assert len(parts) == 3
    assert any(isinstance(part, memoryview) and part.obj is body for part in parts)
    assert b"".join(parts) == b'{"vllm_xargs":{"traffic_class":"code"},' + body[1:]


@pytest.mark.parametrize("value", ['"' + "\\n" * 500_000 + '"', '["' + '","'.join(['\\"'] * 200_000) + '"]'])
def test_looking_through_a_large_body_takes_no_memory_of_its_size(value: str) -> None:
    body = ('{"model":"m","messages":' + value + ',"vllm_xargs":{}}').encode()
    found = read_facts(PATH, body)
    tracemalloc.start()
    parts = mark(body, found, "code")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert b"".join(parts).endswith(b'"vllm_xargs":{"traffic_class":"code"}}')
    assert most < 100_000


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@given(
    fields=st.dictionaries(st.text(max_size=8), json_values, max_size=6),
    xargs=st.none() | st.dictionaries(st.text(max_size=6) | st.just("traffic_class"), json_values, max_size=4),
    indent=st.sampled_from([None, 0, 1, 3]),
    is_ascii=st.booleans(),
    place=st.integers(0, 6),
)
def test_marking_changes_the_class_and_nothing_else(
    fields: dict[str, Any], xargs: dict[str, Any] | None, indent: int | None, is_ascii: bool, place: int
) -> None:
    items = [(key, value) for key, value in fields.items() if key not in ("vllm_xargs", "model", "stream")]
    items.insert(place, ("model", "m"))
    if xargs is not None:
        items.insert(place, ("vllm_xargs", xargs))
    plain = dict(items)
    try:
        body = json.dumps(plain, indent=indent, ensure_ascii=is_ascii).encode()
    except UnicodeEncodeError:
        return
    try:
        read_facts(PATH, body)
    except InvalidJsonError:
        return  # lone surrogates, which JSON as such allows and UTF-8 does not
    result = json.loads(marked(body))
    assert result.pop("vllm_xargs") == {**(xargs or {}), "traffic_class": "code"}
    plain.pop("vllm_xargs", None)
    assert result == plain
    if xargs is None:
        assert marked(body).replace(b'"vllm_xargs":{"traffic_class":"code"},', b"", 1) == body


@given(st.binary(max_size=60))
def test_no_body_is_more_than_a_clear_error(body: bytes) -> None:
    try:
        found = read_facts(PATH, body)
    except (InvalidJsonError, InvalidFieldError) as error:
        assert error.message
    else:
        assert json.loads(b"".join(mark(body, found, "code")))["model"]


@pytest.mark.parametrize("stream", ["yes", 1, [], {}])
def test_a_wrong_type_of_stream_is_named(stream: object) -> None:
    with pytest.raises(InvalidFieldError) as caught:
        facts(stream=stream)
    assert caught.value.param == "stream"


def test_facts() -> None:
    found = facts(
        stream=True,
        tools=[{}],
        response_format={"type": "json_object"},
        max_completion_tokens=7,
        max_tokens=9,
        messages=[
            {"role": "user", "content": "four"},
            {"content": [{"type": "text", "text": "six..."}, {"image": "x"}]},
        ],
        metadata={"traffic_class": "batch"},
        service_tier="flex",
    )
    assert found.stream
    assert found.has_tools
    assert found.has_response_format
    assert found.max_tokens == 7
    assert found.prompt_chars == 10
    assert found.asked_class == "batch"
    assert found.service_tier == "flex"


def test_facts_that_are_not_there() -> None:
    found = facts(stream=None, metadata=[], service_tier=3, max_tokens="9", prompt=["ab", "c"], tools=[])
    assert not found.stream
    assert not found.has_tools
    assert not found.has_response_format
    assert found.max_tokens is None
    assert found.prompt_chars == 3
    assert found.asked_class is None
    assert found.service_tier is None


def test_work_grows_with_prompt_and_output_and_is_bounded() -> None:
    assert facts(max_tokens=10).work_tokens < facts(max_tokens=1000).work_tokens
    assert facts(prompt="x" * 40).work_tokens < facts(prompt="x" * 4000).work_tokens
    assert facts(prompt="x" * 10_000_000, max_tokens=10**9).work_tokens == 8192 + 4096
    assert facts(max_tokens=-5).work_tokens >= 0
