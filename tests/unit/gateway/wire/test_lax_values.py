"""Booleans and numbers are read as vLLM reads them: by pydantic, in its lax mode."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from specpilot.gateway.wire.lax_values import read_bool, read_int

BOOL: TypeAdapter[bool | None] = TypeAdapter(bool | None)
INT: TypeAdapter[int | None] = TypeAdapter(int | None)
WORDS = ["true", "t", "yes", "y", "on", "1", "false", "f", "no", "n", "off", "0", "", " true", "true ", "maybe", "1.0"]
values = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from([0.0, 1.0, -0.0, 2.0, 0.5]), st.text(max_size=3),
    st.sampled_from(WORDS + [word.upper() for word in WORDS] + [word.title() for word in WORDS]),
    st.lists(st.integers(), max_size=1), st.dictionaries(st.text(max_size=1), st.integers(), max_size=1),
)  # fmt: skip


def as_pydantic(adapter: TypeAdapter[bool | None], value: object) -> bool | None:
    try:
        return bool(adapter.validate_python(value))  # null is false
    except ValidationError:
        return None


@given(values)
def test_a_boolean(value: object) -> None:
    assert read_bool(value) is as_pydantic(BOOL, value)


@given(st.one_of(values, st.integers(), st.floats(-1e9, 1e9), st.integers(-999, 999).map(str)))
def test_a_number(value: object) -> None:
    assert read_int(value) == as_number(value)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *((" 16 ", 16), ("16.0", 16), ("16.", None), ("+5", 5), ("1e3", None), ("16.5", None), ("-05", -5)),
        *(("1_000", 1000), ("1_0.0", 10), ("1__0", None), ("_1", None), ("1_", None), ("0" * 20 + "5", 5)),
        *(("5\x1f", None), ("\u20035\xa0\x85\n", 5), ("\u0663", None), ("9" * 4000, None)),
    ],
)
def test_a_number_in_a_text(text: str, number: int | None) -> None:
    assert read_int(text) == number
    if len(text) < 4000:
        assert read_int(text) == as_number(text)


def as_number(value: object) -> int | None:
    try:
        return INT.validate_python(value)
    except ValidationError:
        return None
