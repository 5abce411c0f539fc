import pytest
from hypothesis import given
from hypothesis import strategies as st

from specpilot.gateway.routing.ceiling import ceiling_of
from specpilot.gateway.wire.errors import InvalidFieldError

CEILINGS = st.none() | st.integers(0, 64)


@given(CEILINGS, CEILINGS, CEILINGS)
def test_the_least_of_what_is_there_holds(header: int | None, body: int | None, of_key: int | None) -> None:
    stated = {} if body is None else {"vllm_xargs": {"k_max": body}}
    found = ceiling_of(None if header is None else b"%d" % header, stated, of_key)
    assert found == min((item for item in (header, body, of_key) if item is not None), default=None)


@pytest.mark.parametrize("header", [b"", b"-1", b"65", b"1.0", b"0x1", b"\xb2", b"9" * 5000])
def test_a_header_that_is_no_ceiling_is_refused(header: bytes) -> None:
    with pytest.raises(InvalidFieldError, match="the header x-specpilot-k-max must be a whole number from 0 to 64"):
        ceiling_of(header, {}, None)


@pytest.mark.parametrize("asked", [-1, 65, 1.0, "1", True, None, [1], 10**30])
def test_a_body_that_names_no_ceiling_is_refused_by_its_field(asked: object) -> None:
    with pytest.raises(InvalidFieldError, match="must be a whole number from 0 to 64") as caught:
        ceiling_of(None, {"vllm_xargs": {"k_max": asked}}, 3)
    assert caught.value.param == "vllm_xargs.k_max"


@pytest.mark.parametrize("arguments", [None, "k_max", [], {"other": 1}])
def test_arguments_without_a_ceiling_are_the_engines_business(arguments: object) -> None:
    assert ceiling_of(None, {"vllm_xargs": arguments}, None) is None
