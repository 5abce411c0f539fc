"""Draining at SIGTERM: gateways stop sending, running requests end, then vLLM shuts down.

Runs in the API server's process and replaces vLLM's own handler of SIGTERM once the server has started. vLLM's
`--shutdown-timeout` would reject new requests at once, and a `preStop` hook serves Kubernetes alone.

| state    | begins with                                     | meanwhile                                               |
|----------|-------------------------------------------------|---------------------------------------------------------|
| serving  | the start                                       |                                                         |
| draining | SIGTERM                                         | the record is `draining`, for `grace_s` seconds         |
| ending   | `grace_s` is over                               | `timeout_s` at most, until two checks find nothing runs |
| stopping | nothing runs, time is over, or a second SIGTERM | vLLM's own shutdown                                     |

A hung engine answers no check, and stops when both times are over. Requests that still arrive are served until state
`stopping`. vLLM has one handler for SIGTERM and SIGINT, so its shutdown is started by SIGINT. A SIGINT from outside
(Ctrl-C) stops the engine at once, as without the adapter.
"""

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI

CHECK_EVERY_S = 0.25
"""Seconds between two checks for running requests; also the time for the last bytes to reach their client."""

logger = logging.getLogger("vllm.specpilot")


class Draining:
    """Handles SIGTERM of the process whose event loop runs."""

    def __init__(self, begin: Callable[[], Awaitable[bool | None]], grace_s: float, timeout_s: float) -> None:
        """`begin` marks the engine as draining and returns whether requests run; `None`: no adapter."""
        self._begin = begin
        self._grace_s = grace_s
        self._timeout_s = timeout_s
        self._task: asyncio.Task[None] | None = None

    def attach(self, app: FastAPI) -> None:
        """Replace the handler when the server of `app` has started: vLLM has set its own by then."""
        inner = app.router.lifespan_context

        @asynccontextmanager
        async def lifespan(application: FastAPI) -> AsyncIterator[Any]:
            async with inner(application) as state:
                asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.on_signal)
                yield state

        app.router.lifespan_context = lifespan

    def on_signal(self) -> None:
        """Begin to drain; at the second signal stop at once."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._drain())
        else:
            self._task.cancel()

    async def _drain(self) -> None:
        logger.info("SpecPilot: draining; %.0f s until gateways have seen it", self._grace_s)
        try:
            async with asyncio.timeout(self._grace_s + self._timeout_s):
                if await self._begin() is not None:
                    await asyncio.sleep(self._grace_s)
                    await self._until_idle()
        except TimeoutError:
            logger.warning("SpecPilot: requests still run after %.0f s; stopping all the same", self._timeout_s)
        except Exception as error:  # noqa: BLE001 - an engine that is dead must stop too
            logger.warning("SpecPilot: stopping without a drain: %s", error)
        finally:
            signal.raise_signal(signal.SIGINT)

    async def _until_idle(self) -> None:
        idle = 0
        while idle < 2:  # noqa: PLR2004 - one check may fall between a request's arrival and its start
            idle = 0 if await self._begin() else idle + 1
            await asyncio.sleep(CHECK_EVERY_S)
