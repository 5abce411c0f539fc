"""A Redis of each test's own; a controller, and tokens of its roles, that the tests of a module share."""

import io
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import redirect_stderr, redirect_stdout
from subprocess import CompletedProcess
from unittest.mock import patch

import pytest

from specpilot import cli
from specpilot.policy.access import Role
from specpilot.policy.store import Store
from tests.support.controller_program import TOKEN, Controller, running_controller
from tests.support.patience import PATIENCE_S
from tests.support.redis_server import RedisServer
from tests.support.scripted_engine import ScriptedEngine


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """An empty server, which the test may stop and start."""
    found = RedisServer()
    yield found
    found.close()


@pytest.fixture
def store(server: RedisServer) -> Iterator[Store]:
    found = Store(server.url, PATIENCE_S)
    yield found
    found.close()


@pytest.fixture
async def scripted() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine() as engine:
        yield engine


class QuickController(Controller):
    """A controller whose commands run in this process: starting Python takes longer than they do."""

    def command(self, *words: str, text: str | None = None) -> CompletedProcess[str]:
        arguments = ["specpilot", *words, "--admin-url", self.url, "--token", TOKEN]
        status, out, err = 0, io.StringIO(), io.StringIO()
        given = (patch.object(sys, "argv", arguments), patch.object(sys, "stdin", io.StringIO(text or "")))
        with given[0], given[1], redirect_stdout(out), redirect_stderr(err):
            try:
                cli.main()
            except SystemExit as ended:
                status = int(ended.code or 0)
        return CompletedProcess(arguments, status, out.getvalue(), err.getvalue())


@pytest.fixture(scope="module")
def controller() -> Iterator[Controller]:
    with running_controller() as found:
        yield QuickController(found.url, found.redis, found.process)


@pytest.fixture(scope="module")
def tokens(controller: Controller) -> dict[str, str]:
    """A token of each role."""
    made = {}
    for role in Role:
        status, body, _ = controller.call("/admin/tokens", "POST", {"name": f"the {role}", "role": role})
        assert status == 201
        made[role.value] = body["token"]
    return made
