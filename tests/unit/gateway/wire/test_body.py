import json
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specpilot.gateway.wire.body import COPY_LIMIT_BYTES, RequestFacts, amend, amendments, read_facts
from specpilot.gateway.wire.errors import InvalidFieldError, InvalidJsonError
from specpilot.gateway.wire.outline import BodyOutline

PATH = "/v1/chat/completions"


def marked(body: bytes, traffic_class: str = "code") -> bytes:
    return b"".join(amend((body,), read_facts(PATH, body), amendments(traffic_class, None, False)))


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
        amend((b'{"model":"m"}',), facts(), amendments('x","y":"z', None, False))


def test_a_large_body_is_not_copied() -> None:
    body = b'{"model":"m","image":"' + b"x" * COPY_LIMIT_BYTES + b'"}'
    parts = amend((body,), read_facts(PATH, body), amendments("code", None, False))
    assert len(parts) == 3
    assert any(isinstance(part, memoryview) and part.obj is body for part in parts)
    assert b"".join(parts) == b'{"vllm_xargs":{"traffic_class":"code"},' + body[1:]


@pytest.mark.parametrize("value", ['"' + "\\n" * 500_000 + '"', '["' + '","'.join(['\\"'] * 200_000) + '"]'])
def test_looking_through_a_large_body_takes_no_memory_of_its_size(value: str) -> None:
    body = ('{"model":"m","messages":' + value + ',"vllm_xargs":{}}').encode()
    found = read_facts(PATH, body)
    tracemalloc.start()
    parts = amend((body,), found, amendments("code", None, False))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert b"".join(parts).endswith(b'"vllm_xargs":{"traffic_class":"code"}}')
    assert most < 100_000


@given(st.lists(st.integers(0, 300), max_size=6))
def test_a_body_in_parts_is_amended_as_one_in_one_part(cuts: list[int]) -> None:
    image = b"x" * 99
    body = b' {"model" : "m", "image":"%s","vllm_xargs":{"a":1,"traffic_class":"b"},"priority":3,"model":"n"}' % image
    at = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    parts = tuple(body[start:end] for start, end in pairwise(at) if start < end)
    outline = BodyOutline()
    for part in parts:
        outline.feed(part)
    found = read_facts(PATH, outline.finish(), len(body))
    every = amendments("code", None, True, 2, "served")
    for wanted in (every, amendments("code", 4, False), amendments(None, None, False)):
        assert b"".join(amend(parts, found, wanted, outline)) == b"".join(amend((body,), found, wanted))


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
        assert json.loads(b"".join(amend((body,), found, amendments("code", None, False))))["model"]


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


def amended(value: dict[str, Any], *, priority: int | None = None, asks_usage: bool = False) -> Any:
    body = json.dumps(value).encode()
    return json.loads(b"".join(amend((body,), read_facts(PATH, body), amendments("code", priority, asks_usage))))


@pytest.mark.parametrize(("wanted", "found"), [(None, 0), (0, 0), (-3, -3)])
def test_a_clients_priority_never_reaches_an_engine(wanted: int | None, found: int) -> None:
    assert amended({"model": "m", "priority": -99}, priority=wanted)["priority"] == found
    assert amended({"model": "m"}, priority=wanted).get("priority", 0) == found
    body = b'{"priority":-9,"model":"m","priority":-99}'
    text = b"".join(amend((body,), read_facts(PATH, body), amendments("code", wanted, False)))
    assert b"-9" not in text.replace(b"-3", b"")


@pytest.mark.parametrize(
    "options", [None, {}, {"include_usage": False}, {"include_usage": True, "x": 1}, {"continuous_usage_stats": True}]
)
def test_the_usage_of_a_stream_is_asked_for(options: Any) -> None:
    found = amended({"model": "m", "stream": True, "stream_options": options, "vllm_xargs": {"a": 1}}, asks_usage=True)
    assert found["stream_options"] == {**(options or {}), "include_usage": True}
    assert found["vllm_xargs"] == {"a": 1, "traffic_class": "code"}
    assert amended({"model": "m", "stream": True}, asks_usage=True)["stream_options"] == {"include_usage": True}


def test_what_is_charged_has_no_bound_that_a_client_could_use() -> None:
    found = read_facts(PATH, json.dumps({"model": "m", "prompt": "x" * 400_000, "max_tokens": 50_000}).encode())
    assert found.charged_tokens > 150_000
    assert found.work_tokens == 8192 + 4096


def test_a_ceiling_and_a_model_are_set_wherever_the_body_names_them() -> None:
    body = b'{"vllm_xargs":{"k_max":9,"b":{"k_max":9}}, "model" : "alias","mod\\u0065l":"x","vllm_xargs":{"a":[1]}}'
    wanted = amendments("code", None, False, 2, 'served "m"')
    found = json.loads(b"".join(amend((body,), read_facts(PATH, body), wanted)), object_pairs_hook=list)
    assert found == [
        ("vllm_xargs", [("traffic_class", "code"), ("k_max", 2), ("b", [("k_max", 9)])]),
        ("model", 'served "m"'),
        ("model", 'served "m"'),
        ("vllm_xargs", [("traffic_class", "code"), ("k_max", 2), ("a", [1])]),
    ]


@pytest.mark.parametrize(
    "arguments", ["null", "{}", '{"traffic_class":1}', '{"k_max":1,"traffic_class":"x","k_max":3}']
)
def test_both_arguments_replace_what_an_object_says_of_them(arguments: str) -> None:
    body = b'{"model":"m","vllm_xargs":%s}' % arguments.encode()
    text = b"".join(amend((body,), read_facts(PATH, body), amendments("code", None, False, 0)))
    assert json.loads(text) == {"model": "m", "vllm_xargs": {"traffic_class": "code", "k_max": 0}}
    assert text.count(b'"k_max":0') == max(1, arguments.count("k_max"))


def test_a_prompts_length_is_looked_for_once_and_token_ids_are_passed_over() -> None:
    class Ids(list[int]):
        looked_at = 0

        def __iter__(self) -> Iterator[int]:
            for item in super().__iter__():
                Ids.looked_at += 1
                yield item

    found = facts(prompt=["ab", ["c"]], messages=[{"content": [{"text": "de"}, "f"]}])
    found.body["input"] = Ids(range(1000))
    assert [found.prompt_chars, found.prompt_chars] == [6, 6]
    assert Ids.looked_at <= 1
    found.body["prompt"] = "none of it is walked through again"
    assert found.prompt_chars == 6


@pytest.mark.parametrize(
    ("path", "fields", "limit"),
    [
        ("/v1/responses", {"max_tokens": 1, "max_completion_tokens": 1}, None),
        ("/v1/responses", {"max_tokens": 1, "max_output_tokens": 9}, 9),
        ("/v1/chat/completions", {"max_output_tokens": 1}, None),
        ("/v1/chat/completions", {"max_tokens": 1, "max_completion_tokens": 9}, 9),
        ("/v1/chat/completions", {"max_tokens": 9, "max_completion_tokens": None}, 9),
        ("/v1/completions", {"max_tokens": 9, "max_completion_tokens": 1, "max_output_tokens": 1}, 9),
        ("/v1/messages", {"max_tokens": 9, "max_completion_tokens": 1, "max_output_tokens": 1}, 9),
        ("/invocations", {"messages": [], "max_completion_tokens": 9, "max_tokens": 1}, 9),
        ("/invocations", {"prompt": "a", "max_completion_tokens": 1, "max_tokens": 9}, 9),
        ("/invocations", {"prompt": "a", "messages": 5, "max_completion_tokens": 1}, None),
    ],
)
def test_a_limit_is_what_the_route_honours(path: str, fields: dict[str, Any], limit: int | None) -> None:
    assert read_facts(path, json.dumps({"model": "m", **fields}).encode()).max_tokens == limit


def test_a_response_in_the_background_is_endless_whatever_other_routes_call_a_limit() -> None:
    body = {"model": "m", "input": "a", "background": True, "max_tokens": 1}
    assert read_facts("/v1/responses", json.dumps(body).encode()).is_endless
