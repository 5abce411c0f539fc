"""Plays a trace against a running system and reads the engines' counters once a second."""

import asyncio
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specpilot.bench.load.closed_loop import Load
from specpilot.bench.load.system import Reading, System
from specpilot.bench.load.trace import LoadPhase, Trace

READ_EVERY_S = 1.0
"""Seconds between two readings of the engines' counters."""


@dataclass(frozen=True, slots=True)
class Played:
    """One play of a trace: each phase's readings, the first at its begin; requests sent and failed."""

    phases: Sequence[Sequence[Reading]]
    requests: int
    failed: Mapping[str, int]

    @property
    def rates(self) -> list[float]:
        """Output tokens per second of each phase, from its begin."""
        return [
            (readings[-1].tokens - readings[0].tokens) / (readings[-1].at - readings[0].at) for readings in self.phases
        ]


class Player:
    """Plays phases, one after another, against one system; `pause` between them frees the machine for others."""

    def __init__(
        self, system: System, model: str, prompts: Mapping[str, Sequence[Mapping[str, Any]]], *, names_classes: bool
    ) -> None:
        """With `names_classes` False every request is sent without a class."""
        self._system = system
        self._load = Load(f"{system.gateway_url}/v1", model, prompts, names_classes=names_classes)
        self._phases: list[list[Reading]] = []

    async def phase(self, phase: LoadPhase, label: str) -> str:
        """Play `phase` and return a line about it; running requests of the last phase go on if it has their kind."""
        await self._load.shift_to(phase)
        readings = [await asyncio.to_thread(self._system.read)]
        ends_at = time.monotonic() + phase.seconds
        while (remaining_s := ends_at - time.monotonic()) > 0:
            await asyncio.sleep(min(READ_EVERY_S, remaining_s))
            readings.append(await asyncio.to_thread(self._system.read))
            if sys.stdout.isatty():
                sys.stdout.write("\r\033[K" + _line(label, readings[-2], readings[-1]))
                sys.stdout.flush()
        self._phases.append(readings)
        return _line(label, readings[0], readings[-1])

    async def pause(self) -> None:
        """Drop the requests in flight."""
        await self._load.pause()

    async def close(self) -> Played:
        """End, and return the play."""
        await self._load.close()
        return Played(self._phases, self._load.requests, dict(self._load.failed))


async def play(
    system: System,
    model: str,
    trace: Trace,
    prompts: Mapping[str, Sequence[Mapping[str, Any]]],
    say: Callable[[str], None],
) -> Played:
    """Play `trace` once, without a pause."""
    player = Player(system, model, prompts, names_classes=True)
    try:
        for phase in trace.phases:
            say(await player.phase(phase, phase.name))
    finally:
        played = await player.close()
    if played.failed:
        say(f"  failed requests: {played.failed} of {played.requests}")
    return played


def _line(label: str, before: Reading, now: Reading) -> str:
    parts = []
    for traffic_class in sorted(now.drafts):
        drafts = now.drafts[traffic_class] - before.drafts.get(traffic_class, 0.0)
        if drafts > 0:
            tokens, verified = (
                after[traffic_class] - earlier.get(traffic_class, 0.0)
                for after, earlier in (
                    (now.delivered_tokens, before.delivered_tokens),
                    (now.verified_tokens, before.verified_tokens),
                )
            )
            parts.append(f"{traffic_class} K={verified / drafts:.1f} AL={tokens / drafts:.2f}")
    rate = (now.tokens - before.tokens) / (now.at - before.at)
    return f"  {label:<18}{rate:7.0f} tok/s   {'  '.join(parts)}"
