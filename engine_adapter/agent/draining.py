"""SIGTERM to an engine: gateways stop sending, what runs comes to its end, then vLLM shuts down.

Runs in the API server's process, whose event loop has vLLM's own handler of SIGTERM; this one takes its place when the
server has started.

| state    | begins with                          | meanwhile                                                        |
|----------|--------------------------------------|------------------------------------------------------------------|
| serving  | the start                            |                                                                  |
| draining | SIGTERM                              | the record says `draining`; `grace_s` seconds for gateways to see |
| ending   | the grace is over                    | `timeout_s` seconds at most, until two looks find nothing running |
| stopping | nothing runs, or time is up, or a second SIGTERM | vLLM's own shutdown                                   |

An engine that hangs answers no look, and is stopping when both times are over.
Requests that come all the same are served until the last state. vLLM has one handler for SIGTERM and SIGINT, so it is
reached by SIGINT; a SIGINT from outside (Ctrl-C) stops the engine at once, as ever.
"""

import asyncio
import json
import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI

LOOK_EVERY_S = 0.25
"""Between two looks whether anything runs, in seconds: also the time that the last bytes have to reach their client."""

logger = logging.getLogger("vllm.specpilot")


class Draining:
    """Takes SIGTERM of the process whose event loop runs."""

    def __init__(self, begin: Callable[[], Awaitable[str]], grace_s: float, timeout_s: float) -> None:
        """`begin` marks the engine as draining and returns, as JSON, whether requests run; `null`: no adapter there."""
        self._begin = begin
        self._grace_s = grace_s
        self._timeout_s = timeout_s
        self._task: asyncio.Task[None] | None = None

    def attach(self, app: FastAPI) -> None:
        """Take the signal over when the server that runs `app` has started: vLLM has set its own handler by then."""
        inner = app.router.lifespan_context

        @asynccontextmanager
        async def lifespan(found: FastAPI) -> AsyncIterator[Any]:
            async with inner(found) as state:
                asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.on_signal)
                yield state

        app.router.lifespan_context = lifespan

    def on_signal(self) -> None:
        """Begin to drain; the second time stop at once."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._drain())
        else:
            self._task.cancel()

    async def _drain(self) -> None:
        logger.info("SpecPilot: draining; %.0f s until gateways have seen it", self._grace_s)
        try:
            async with asyncio.timeout(self._grace_s + self._timeout_s):
                if await self._is_running() is not None:
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
        while idle < 2:  # noqa: PLR2004 - one look may fall between a request's arrival and its place in the engine
            idle = 0 if await self._is_running() else idle + 1
            await asyncio.sleep(LOOK_EVERY_S)

    async def _is_running(self) -> bool | None:
        found: bool | None = json.loads(await self._begin())
        return found
