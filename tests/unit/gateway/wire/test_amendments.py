import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specpilot.gateway.wire.amendments import COPY_LIMIT_BYTES, amend, with_request_id
from specpilot.gateway.wire.errors import InvalidJsonError
from specpilot.gateway.wire.outline import BodyOutline
from specpilot.gateway.wire.request_facts import read_facts

PATH = "/v1/chat/completions"
NEW = b'{"a":[1]}'


def amended(body: bytes, **members: bytes) -> bytes:
    return b"".join(amend((body,), read_facts(PATH, body), members))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("{}", '{"new":{"a":[1]}}'),
        ('{"model":"m"}', '{"new":{"a":[1]},"model":"m"}'),
        (' \n{ "model":"m"}', ' \n{"new":{"a":[1]}, "model":"m"}'),
        ('{"model":"m","new" : null}', '{"model":"m","new" : {"a":[1]}}'),
        ('{"new":{"b":[1,{"new":2}]} , "model":"m"}', '{"new":{"a":[1]} , "model":"m"}'),
        ('{"new":"}","model":"m","\\u006eew":-1e5}', '{"new":{"a":[1]},"model":"m","\\u006eew":{"a":[1]}}'),
        (
            '{"model":"m","x":[{"new":"{\\"new\\":{}}"}]}',
            '{"new":{"a":[1]},"model":"m","x":[{"new":"{\\"new\\":{}}"}]}',
        ),
    ],
)
def test_a_member_goes_into_the_clients_own_bytes(before: str, after: str) -> None:
    assert amended(before.encode(), new=NEW).decode() == after


def test_members_that_are_there_are_replaced_wherever_they_are_and_the_others_added() -> None:
    body = b'{"b":1, "model" : "alias","mod\\u0065l":"x"}'
    found = amended(body, new=NEW, model=b'"served"', c=b"0")
    assert found == b'{"new":{"a":[1]},"c":0,"b":1, "model" : "served","mod\\u0065l":"served"}'


def test_without_members_a_body_is_not_touched() -> None:
    body = (b'{"model":"m"}',)
    assert amend(body, read_facts(PATH, body[0]), {}) is body


def test_a_large_body_is_not_copied() -> None:
    body = b'{"model":"m","image":"' + b"x" * COPY_LIMIT_BYTES + b'"}'
    parts = amend((body,), read_facts(PATH, body), {"new": NEW})
    assert len(parts) == 3
    assert any(isinstance(part, memoryview) and part.obj is body for part in parts)
    assert b"".join(parts) == b'{"new":{"a":[1]},' + body[1:]


@given(st.lists(st.integers(0, 300), max_size=6))
def test_a_body_in_parts_is_amended_as_one_in_one_part(cuts: list[int]) -> None:
    image = b"x" * 99
    body = b' {"model" : "m", "image":"%s","stream_options":{"a":1},"priority":3,"model":"n"}' % image
    at = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    parts = tuple(body[start:end] for start, end in pairwise(at) if start < end)
    outline = BodyOutline()
    for part in parts:
        outline.feed(part)
    found = read_facts(PATH, outline.finish(), len(body))
    for members in ({"model": b'"served"', "priority": b"0", "stream_options": NEW, "new": NEW}, {"new": NEW}, {}):
        assert b"".join(amend(parts, found, members, outline)) == b"".join(amend((body,), found, members))


@pytest.mark.parametrize("is_null", [True, False])
@pytest.mark.parametrize("start", [b'{"a":1', b' \n{"a":{}', b'{"a":"' + b"x" * 100_000 + b'"'])
def test_a_body_gets_an_identifier_however_it_is_cut(start: bytes, is_null: bool) -> None:
    body = start + (b', "request_id" : null}' if is_null else b"}")
    wanted = json.loads(body) | {"request_id": "resp_x"}
    for parts in ((body,), (memoryview(body),), (memoryview(body)[:5], body[5:])):
        assert json.loads(b"".join(with_request_id(parts, "resp_x", is_null=is_null))) == wanted


def test_a_body_behind_much_white_space_gets_none() -> None:
    body = (b" " * 70_000 + b'{"a":1}',)
    assert with_request_id(body, "resp_x", is_null=False) is body


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@given(
    fields=st.dictionaries(st.text(max_size=8) | st.just("priority"), json_values, max_size=6),
    indent=st.sampled_from([None, 0, 1, 3]),
    is_ascii=st.booleans(),
)
def test_a_member_changes_and_nothing_else(fields: dict[str, Any], indent: int | None, is_ascii: bool) -> None:
    plain = {key: value for key, value in fields.items() if key not in ("model", "stream")}
    try:
        body = json.dumps(plain, indent=indent, ensure_ascii=is_ascii).encode()
        read_facts(PATH, body)
    except (UnicodeEncodeError, InvalidJsonError):
        return  # lone surrogates, which JSON as such allows and UTF-8 does not
    result = amended(body, priority=b"0")
    assert json.loads(result) == {**plain, "priority": 0}
    if "priority" not in plain and plain:
        assert result.replace(b'"priority":0,', b"", 1) == body
