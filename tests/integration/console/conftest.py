"""The console in a real browser, on a real controller that steers real HTTP engines."""

from collections.abc import Iterator

import pytest

from tests.support.browser import Browser, running_browser
from tests.support.controller_engine import living_engines
from tests.support.controller_program import TOKEN, Controller


@pytest.fixture(scope="module")
def engine(controller: Controller) -> Iterator[None]:
    """An engine with traffic."""
    with living_engines(controller.redis.url):
        yield


@pytest.fixture(scope="module")
def started() -> Iterator[Browser]:
    with running_browser() as found:
        yield found


@pytest.fixture
def browser(started: Browser, controller: Controller) -> Browser:
    """A tab that shows the console, let in as the first admin."""
    started.look(1800, 1000)
    started.open(f"{controller.url}/console/style.css")  # of the same origin: what the tab keeps is emptied
    started.run("sessionStorage.clear(); sessionStorage.setItem('token', arguments[0])", TOKEN)
    started.complaints()
    return started
