"""Which tests share a process where there are several (`pytest -n 2 --dist loadgroup`)."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a file together, as they share fixtures, and those that start engines one after another."""
    for item in items:
        starts_engine = item.get_closest_marker("engine") is not None
        item.add_marker(pytest.mark.xdist_group("engine" if starts_engine else item.nodeid.partition("::")[0]))
