"""A control loop in virtual time."""

import pytest

from tests.support.loop_rig import Rig


@pytest.fixture
def rig() -> Rig:
    return Rig.new()
