"""The console in a real browser, on a real controller that steers real HTTP engines."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from specpilot.policy.redis_store import RedisStore
from tests.support.browser import Browser, running_browser
from tests.support.controller_engine import HttpEngine
from tests.support.controller_program import TOKEN, Controller
from tests.support.patience import PATIENCE_S


@pytest.fixture(scope="module")
def engine(controller: Controller) -> Iterator[None]:
    """An engine with traffic."""
    store, is_over = RedisStore(controller.redis.url, PATIENCE_S), threading.Event()

    async def live() -> None:
        async with HttpEngine(store):
            await asyncio.to_thread(is_over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(live()))
    thread.start()
    yield
    is_over.set()
    thread.join(PATIENCE_S)
    store.close()


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
