"""For all tests: which of them share a process of several (`pytest -n 2 --dist loadgroup`), and no deadlines.

A deadline of an example would judge the machine: other processes take the cores.
"""

import pytest
from hypothesis import settings

settings.register_profile("no deadlines", deadline=None)
settings.load_profile("no deadlines")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a file together, as they share fixtures, and those that start engines one after another."""
    for item in items:
        starts_engine = item.get_closest_marker("engine") is not None
        item.add_marker(pytest.mark.xdist_group("engine" if starts_engine else item.nodeid.partition("::")[0]))
