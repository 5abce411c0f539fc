import gc
import json
import time
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specpilot.gateway.wire.amendments import amend
from specpilot.gateway.wire.errors import BodyTooComplexError
from specpilot.gateway.wire.outline import BodyOutline
from specpilot.gateway.wire.request_facts import read_facts

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)
SLICE = 262_144
LONGEST_S = 0.1
"""Ten times what a part may take of a core of one's own; of one whose caches others use too it takes more."""


def outlined(body: bytes, size: int = SLICE) -> BodyOutline:
    outline = BodyOutline()
    for start in range(0, len(body), size):
        outline.feed(body[start : start + size])
    return outline


@given(JSON, st.booleans(), st.integers(1, 40))
def test_what_has_no_long_string_is_its_own_outline(value: Any, is_ascii: bool, size: int) -> None:
    body = json.dumps(value, ensure_ascii=is_ascii).encode()
    assert outlined(body, size).finish() == body


@given(
    st.lists(st.sampled_from(["a", '"', "\\", "é", "😀", "\n", "x" * 9000, "é" * 9000, "ab\\" * 5000]), max_size=8),
    st.booleans(),
    st.integers(3000, 70_000),
)
def test_an_outline_is_json_whose_strings_begin_and_end_as_the_bodys(
    parts: list[str], is_ascii: bool, size: int
) -> None:
    text = "".join(parts)
    value = {"a": [text, 1], "-" + text: None, "b": {"c": text}}
    found = orjson.loads(outlined(json.dumps(value, ensure_ascii=is_ascii).encode(), size).finish())
    assert [*found][0::2] == ["a", "b"]
    for mine in (found["a"][0], [*found][1][1:], found["b"]["c"]):
        assert len(mine) <= len(text)
        assert mine[:500] == text[:500]
        assert mine[-500:] == text[-500:]
    assert found["a"][1] == 1


@pytest.mark.parametrize("options", [{}, {"include_usage": False}, None])
def test_a_large_body_is_amended_where_its_member_is(options: Any) -> None:
    value = {
        "image": "A" * 3_000_000,
        "stream_options": options,
        "messages": [{"content": "é" * 200_000}, {"content": 'say "stream_options": {}'}],
        "model": "m",
    }
    body = json.dumps(value, ensure_ascii=False).encode()
    outline = outlined(body)
    text = outline.finish()
    assert len(text) < 200_000
    facts = read_facts("/v1/completions", text, len(body))
    assert facts.work_tokens == read_facts("/v1/completions", body).work_tokens
    found = orjson.loads(b"".join(amend((body,), facts, {"stream_options": b"1"}, outline)))
    assert found == {**value, "stream_options": 1}


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","a":[' + b"[]," * 5_000_000 + b"1]}",
        b'{"model":"m","a":[' + b"{}," * 5_000_000 + b"1]}",
        b'{"model":"m","a":' + b"[" * 500_000 + b"]" * 500_000 + b"}",
        b'{"vllm_xargs":{},' + b",".join(b'"k%d":1' % at for at in range(800_000)) + b"}",
        b'{"model":"m","a":[' + b'"",' * 5_000_000 + b"1]}",
        b'{"model":"m","a":[' + b"1," * 5_000_000 + b"1]}",
        b'{"model":"m","a":1' + b"0" * 15_000_000 + b"}",
        b'{"model":"m",' + b" " * 15_000_000 + b'"a":1}',
        b'{"model":"m","a":"' + b'\\"' * 7_000_000 + b'"}',
    ],
    ids=["lists", "objects", "depth", "members", "strings", "items", "number", "space", "escaped quotes"],
)
def test_a_body_that_would_hold_the_loop_is_refused_before_it_is_parsed(body: bytes) -> None:
    with pytest.raises(BodyTooComplexError):
        outlined(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","image":"' + b"A" * 16_000_000 + b'"}',
        b'{"model":"m","prompt":[' + b"123456," * 200_000 + b"1]}",
        b'{"model":"m","text":"' + "é".encode() * 8_000_000 + b'"}',
        b'{"model":"m","text":"' + b"\\\\" * 900_000 + b'"}',
        json.dumps({"model": "m", "tools": [{"name": f"t{at}", "a": {"b": [1, "x"]}} for at in range(3000)]}).encode(),
    ],
    ids=["image", "token ids", "not ascii", "backslashes", "tools"],
)
def test_no_part_of_a_large_body_takes_long(body: bytes) -> None:
    outline, longest_s = BodyOutline(), 0.0
    gc.collect()
    gc.freeze()  # as the gateway does at its start: a collection looks at what requests made, not at the whole program
    for start in range(0, len(body), SLICE):
        began = time.thread_time()
        outline.feed(body[start : start + SLICE])
        longest_s = max(longest_s, time.thread_time() - began)
    began = time.thread_time()
    assert read_facts("/v1/completions", outline.finish(), len(body)).model == "m"
    longest_s = max(longest_s, time.thread_time() - began)
    assert longest_s < LONGEST_S


@pytest.mark.parametrize(
    ("rest", "fault"),
    [(b",".join(b'"k%d":1' % at for at in range(600)), "512 members"), (b'"x":' + b"[" * 1000 + b"]" * 1000, "nested")],
)
def test_many_members_or_much_nesting_beside_one_to_replace_are_refused(rest: bytes, fault: str) -> None:
    body = b'{"model":"m","priority":1,' + rest + b"}"
    with pytest.raises(BodyTooComplexError, match=fault):
        amend((body,), read_facts("/v1/completions", body), {"priority": b"0"})


def test_no_walk_through_a_large_body_takes_long() -> None:
    """All that stands beside a member to replace has to be passed over to find it."""

    def walked(strings: int) -> float:
        body = b'{"model":"m","priority":1,"x":["' + b'a\\n","{' * strings + b'"]}'
        outline = outlined(body)
        facts = read_facts("/v1/completions", outline.finish(), len(body))
        began = time.thread_time()
        amend((body,), facts, {"priority": b"0"}, outline)
        return time.thread_time() - began

    gc.collect()
    gc.freeze()
    assert min(walked(59_000) for _ in range(3)) < LONGEST_S
    with pytest.raises(BodyTooComplexError, match="60000 strings"):
        walked(130_000)
