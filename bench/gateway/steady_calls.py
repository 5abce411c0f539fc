"""Clients that keep a set number of requests in flight, whatever their fate, and count the verdicts.

They spread over several gateways, as behind a load balancer: over those whose `/ready` is 200, and to another one at
once when a connection is refused. On a gateway that is no longer ready they finish their request, and then change.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from specpilot.bench.gateway.call_mix import Mix
from specpilot.bench.gateway.judged_call import Caller, Verdict, connect
from specpilot.bench.load.asker import is_ready

LOOK_EVERY_S = 0.1
REFUSED_PAUSE_S = 0.05


@dataclass(slots=True)
class Counts:
    """Counts of requests: `outcomes` by verdict, `codes` of the wrong ones; `lost_later`: see `SteadyCalls.cut_at`."""

    requests: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    lost_later: int = 0


class SteadyCalls:
    """Calls to the gateways on `ports`. While `is_leaving`, half of the clients close in the phase `leaves`.

    Connections were cut at `cut_at` (monotonic seconds): no request that begins later may be lost.
    """

    def __init__(self, ports: Sequence[int], mix: Mix, clients: int, leaves: str = "") -> None:
        self.counts = Counts()
        self.cut_at = float("inf")
        self.is_leaving = False
        self._ports = list(ports)
        self._ready = list(ports)
        self._mix = mix
        self._clients = clients
        self._leaves = leaves
        self._rng = random.Random(len(ports))  # noqa: S311 - a reproducible load
        self._is_over = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep the requests in flight; at the end wait for those that run."""
        self._is_over = False
        async with asyncio.TaskGroup() as group:
            for at in range(self._clients):
                group.create_task(self._client(may_leave=at % 2 == 0))
            looking = group.create_task(self._look())
            try:
                yield
            finally:
                self._is_over = True
                looking.cancel()

    async def _client(self, *, may_leave: bool) -> None:
        caller: Caller | None = None
        port = 0
        while not self._is_over:
            if caller is None or caller.is_closed or port not in self._ready:
                if caller is not None:
                    caller.close()
                caller, port = await self._connect()
            call = self._mix.leaving(self._leaves) if may_leave and self.is_leaving else self._mix.draw()
            self.counts.requests += 1
            began = time.monotonic()
            verdict = await caller.ask(call)
            if verdict not in call.expected:
                self._note(verdict, began)
                await asyncio.sleep(REFUSED_PAUSE_S)
            self.counts.outcomes[verdict.outcome] += 1
        if caller is not None:
            caller.close()

    def _note(self, verdict: Verdict, began: float) -> None:
        self.counts.codes[str(verdict)] += 1
        if verdict.outcome == "lost" and began > self.cut_at:
            self.counts.lost_later += 1

    async def _connect(self) -> tuple[Caller, int]:
        while True:
            port = self._rng.choice(self._ready or self._ports)
            try:
                return await connect(port), port
            except OSError:
                if port in self._ready:
                    self._ready.remove(port)
                await asyncio.sleep(0.01)

    async def _look(self) -> None:
        if len(self._ports) == 1:
            return
        while True:
            states = await asyncio.gather(*map(is_ready, self._ports))
            self._ready = [port for port, answers in zip(self._ports, states, strict=True) if answers]
            await asyncio.sleep(LOOK_EVERY_S)
