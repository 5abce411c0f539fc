import json
import tracemalloc
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specpilot.gateway.wire.amendments import COPY_LIMIT_BYTES, amend, amendments
from specpilot.gateway.wire.errors import InvalidFieldError, InvalidJsonError
from specpilot.gateway.wire.outline import BodyOutline
from specpilot.gateway.wire.request_facts import read_facts

PATH = "/v1/chat/completions"


def marked(body: bytes, traffic_class: str = "code") -> bytes:
    return b"".join(amend((body,), read_facts(PATH, body), amendments(traffic_class, None, False)))


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
        marked(b'{"model":"m"}', 'x","y":"z')


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
    set_by_gateway = ("vllm_xargs", "model", "stream", "priority")
    items = [(key, value) for key, value in fields.items() if key not in set_by_gateway]
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
        document = json.loads(b"".join(amend((body,), found, amendments("code", None, False))))
        assert (document.get("model") or "") == found.model  # none is for the only model that can be meant
        assert document["vllm_xargs"]["traffic_class"] == "code"


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
    silent = {"continuous_usage_stats": False} if "continuous_usage_stats" in (options or {}) else {}
    assert found["stream_options"] == {**(options or {}), "include_usage": True, **silent}
    assert found["vllm_xargs"] == {"a": 1, "traffic_class": "code"}
    assert amended({"model": "m", "stream": True}, asks_usage=True)["stream_options"] == {"include_usage": True}


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
