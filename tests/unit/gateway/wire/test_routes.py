"""Routes to stored responses, and identifiers that name their engine."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specpilot.gateway.wire.response_id import (
    RANDOM_BITS,
    is_of_another,
    new_response_id,
    tag_in,
    tag_of,
)
from specpilot.gateway.wire.routes import RESPONSE, RESPONSE_CANCEL, asks_stream, method_of, response_id, stored_route


@pytest.mark.parametrize(
    ("target", "route"),
    [
        ("/v1/responses/resp_1", RESPONSE),
        ("/v1/responses/resp_1?stream=true&starting_after=3", RESPONSE),
        ("/v1/responses/resp_1/cancel", RESPONSE_CANCEL),
        ("/v1/responses/", None),
        ("/v1/responses/../models", None),
        ("/v1/responses/a/b", None),
        ("/v1/responses/a%2f..%2f", None),
        ("/v1/responses/resp_1/cancel/x", None),
        ("/v1/responses/resp_1?include%5B%5D=reasoning.encrypted_content&stream=%74rue", RESPONSE),
        ("/v1/responses/resp_1?a=%0d%0a", None),
        ("/v1/responses/resp_1?a=\r\n", None),
        ("/v1/responses/resp_1?a=b c", None),
        ("/v1/responses/resp_1?a=b#c", None),
        ("/v1/responses/" + "a" * 129, None),
    ],
)
def test_targets(target: str, route: str | None) -> None:
    assert stored_route(target.encode()) == route
    if route is not None:
        assert response_id(target) == "resp_1"


def test_methods_and_streams() -> None:
    assert [method_of(path) for path in (RESPONSE, RESPONSE_CANCEL, "/pooling")] == ["GET", "POST", "POST"]
    assert asks_stream("/v1/responses/a?starting_after=1&stream=true")
    assert not asks_stream("/v1/responses/a?stream=false")
    assert not asks_stream("/v1/responses/a")
    assert asks_stream("/v1/responses/a?include%5B%5D=b&stre%61m=%74rue")
    for value in ("True", "1", "on", "YES"):
        assert asks_stream(f"/v1/responses/a?stream=0&stream={value}")
        assert not asks_stream(f"/v1/responses/a?stream={value}&stream=no")


@given(st.integers(0, 2**64 - 1), st.sampled_from([None, "a", "b"]), st.integers(0, 2**RANDOM_BITS - 1))
def test_an_identifier_names_its_engine_and_its_key(engine_hash: int, key_id: str | None, random_bits: int) -> None:
    made = new_response_id(engine_hash, key_id, random_bits)
    assert len(made) == len("resp_") + 32  # as vLLM's own
    assert tag_in(made) == tag_of(engine_hash)
    for other in ("a", "b"):
        assert is_of_another(made, other) == (key_id not in (None, other))


def test_other_identifiers_name_none() -> None:
    for other in ("", "resp_1", "chatcmpl-" + "0" * 32, "resp_" + "g" * 32, "resp_" + "0" * 33):
        assert tag_in(other) is None
        assert not is_of_another(other, "a")
