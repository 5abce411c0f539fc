import dataclasses
from typing import Any

import pytest

from specpilot.bench.gateway.hostile import Row, broken_bounds, chunked, head

GOOD = Row(says="x", status=413, stall_ms=3.0, memory_mib=10.0)


def test_a_client_that_is_answered_rightly_and_costs_little_breaks_no_bound() -> None:
    assert broken_bounds(GOOD, frozenset((413,)), 10.0, 64.0) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"status": 200}, "answered 200"), ({"stall_ms": 10.1}, "10.1 ms"), ({"memory_mib": 65.0}, "65 MiB")],
)
def test_each_bound_can_be_broken(changes: dict[str, Any], said: str) -> None:
    [found] = broken_bounds(dataclasses.replace(GOOD, **changes), frozenset((413,)), 10.0, 64.0)
    assert said in found


def test_a_head_names_its_length_and_only_with_a_key_the_key() -> None:
    assert head(7).endswith(b"content-length: 7\r\n\r\n")
    assert b"authorization" in head(7)
    assert b"authorization" not in head(7, has_key=False)


def test_a_body_in_chunks_has_no_length() -> None:
    assert head(None).endswith(b"transfer-encoding: chunked\r\n\r\n")
    assert chunked(b"abcde", 2) == b"2\r\nab\r\n2\r\ncd\r\n1\r\ne\r\n0\r\n\r\n"
