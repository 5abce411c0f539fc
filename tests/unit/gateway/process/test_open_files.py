import resource

import pytest

from specpilot.gateway.process.open_files import FILES_KEPT, connections_within, raise_limit


@pytest.mark.parametrize(
    ("files", "wanted", "found"),
    [
        (None, 16_384, 16_384),
        (1_048_576, 16_384, 16_384),
        (2 * 16_384 + FILES_KEPT, 16_384, 16_384),
        (2 * 16_384 + FILES_KEPT - 1, 16_384, 16_383),
        (1024, 16_384, (1024 - FILES_KEPT) // 2),
        (1024, 100, 100),
        (10, 16_384, 1),
    ],
)
def test_each_client_has_room_for_a_connection_to_an_engine(files: int | None, wanted: int, found: int) -> None:
    said: list[str] = []
    assert connections_within(files, wanted, said.append) == found
    assert bool(said) == (found < wanted)
    assert all(f"{found} clients" in line and "ulimit -n" in line for line in said)


def test_the_limit_is_raised_to_what_the_system_allows() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
        found = raise_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
        assert found == (None if hard == resource.RLIM_INFINITY else hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
