"""An engine of SpecPilot's for a sweep."""

from collections.abc import AsyncIterator

import pytest

from tests.support.sweep_endpoint import Endpoint


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    found = Endpoint(has_adapter=True)
    await found.start()
    yield found
    await found.stop()
