"""An endpoint with SpecPilot's adapter, as a sweep finds it."""

from collections.abc import AsyncIterator

import pytest

from tests.support.sweep_endpoint import Endpoint


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    async with Endpoint(has_adapter=True) as started:
        yield started
