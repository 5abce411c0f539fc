"""Plays a trace against a running system and reads the engines' counters once a second."""

import asyncio
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specpilot.bench.demo.closed_loop import Load
from specpilot.bench.demo.system import Reading, System
from specpilot.bench.demo.trace import LoadPhase, Trace

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


async def play(
    system: System,
    model: str,
    trace: Trace,
    prompts: Mapping[str, Sequence[Mapping[str, Any]]],
    say: Callable[[str], None],
) -> Played:
    """Play the phases of `trace` one after another; a running request goes on if the next phase has its kind."""
    load = Load(f"{system.gateway_url}/v1", model, prompts)
    phases = []
    try:
        for phase in trace.phases:
            await load.shift_to(phase.streams)
            readings = await _readings(system, phase)
            phases.append(readings)
            say(_line(phase.name, readings[0], readings[-1]))
    finally:
        await load.close()
    if load.failed:
        say(f"  failed requests: {dict(load.failed)} of {load.requests}")
    return Played(phases, load.requests, dict(load.failed))


async def _readings(system: System, phase: LoadPhase) -> list[Reading]:
    readings = [await asyncio.to_thread(system.read)]
    ends_at = time.monotonic() + phase.seconds
    while (remaining_s := ends_at - time.monotonic()) > 0:
        await asyncio.sleep(min(READ_EVERY_S, remaining_s))
        readings.append(await asyncio.to_thread(system.read))
        if sys.stdout.isatty():
            sys.stdout.write("\r\033[K" + _line(phase.name, readings[-2], readings[-1]))
            sys.stdout.flush()
    return readings


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
