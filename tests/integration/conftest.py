"""A Redis of each test's own; a controller, and tokens of its roles, that the tests of a module share."""

from collections.abc import AsyncIterator, Iterator
from contextlib import closing

import pytest

from specpilot.policy.access import Role
from specpilot.policy.store import Store
from tests.support.controller_program import Controller, running_controller
from tests.support.patience import PATIENCE_S
from tests.support.redis_server import RedisServer
from tests.support.scripted_engine import ScriptedEngine


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """An empty server, which the test may stop and start."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def store(server: RedisServer) -> Iterator[Store]:
    with closing(Store(server.url, PATIENCE_S)) as store:
        yield store


@pytest.fixture
async def scripted() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine() as engine:
        yield engine


@pytest.fixture(scope="module")
def controller() -> Iterator[Controller]:
    with running_controller() as found:
        yield found


@pytest.fixture(scope="module")
def tokens(controller: Controller) -> dict[str, str]:
    """A token of each role."""
    made = {}
    for role in Role:
        status, body, _ = controller.call("/admin/tokens", "POST", {"name": f"the {role}", "role": role})
        assert status == 201
        made[role.value] = body["token"]
    return made
