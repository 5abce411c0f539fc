"""A controller, and tokens of its roles, that the tests of a module share."""

from collections.abc import Iterator

import pytest

from specpilot.policy.access import Role
from tests.support.controller_program import Controller, running_controller


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
