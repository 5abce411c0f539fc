"""The names of engines that share an address."""

from dataclasses import replace

import pytest

from specpilot.policy.codec import decode, encode
from specpilot.policy.records import EngineRecord, rank_id
from tests.support.engine_records import record


@pytest.mark.parametrize(
    ("engine_id", "rank", "server_id"),
    [
        ("a:1", None, "a:1"),
        ("a-dp0", None, "a-dp0"),
        (rank_id("a:1", 0), 0, "a:1"),
        (rank_id("a-dp1", 12), 12, "a-dp1"),
    ],
)
def test_the_ranks_of_a_server_share_its_name(engine_id: str, rank: int | None, server_id: str) -> None:
    found = replace(record(engine_id, "http://a:1"), rank=rank)
    assert found.server_id == server_id
    assert decode(EngineRecord, encode(found)) == found
