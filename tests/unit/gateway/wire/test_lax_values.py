"""Booleans and numbers are read as vLLM reads them: by pydantic, in its lax mode."""

import pytest

from specpilot.gateway.wire.lax_values import read_bool, read_int


@pytest.mark.parametrize(
    ("value", "meaning"),
    [
        *((None, False), (False, False), (True, True), (0, False), (1.0, True), ("ON", True), ("f", False)),
        *((2, None), ("", None), ("maybe", None), (" true", None), ([], None), ({}, None)),
    ],
)
def test_a_boolean(value: object, meaning: bool | None) -> None:
    assert read_bool(value) is meaning


@pytest.mark.parametrize(
    ("value", "number"),
    [
        *((None, None), (7, 7), (7.0, 7), (7.5, None), (True, 1), ([7], None), (10**30, 10**30)),
        *((" 16 ", 16), ("16.0", 16), ("+5", 5), ("1e3", None), ("16.5", None), ("1_000", 1000), ("9" * 4000, None)),
    ],
)
def test_a_number(value: object, number: int | None) -> None:
    assert read_int(value) == number
