"""Plays a trace against a running system and reads, once a second, what the engines delivered."""

import asyncio
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.load import Load
from bench.system import Reading, System
from bench.trace import Trace

LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class Played:
    """One play of a trace: for each phase its readings, the first at its begin; requests sent and failed."""

    phases: Sequence[Sequence[Reading]]
    sent: int
    failed: Mapping[str, int]

    @property
    def rates(self) -> list[float]:
        """Output tokens per second of each phase, from its begin."""
        return [(looks[-1].tokens - looks[0].tokens) / (looks[-1].at - looks[0].at) for looks in self.phases]


async def play(  # noqa: PLR0913 - what to play, against what, and who hears of it
    system: System,
    model: str,
    trace: Trace,
    prompts: Mapping[str, Sequence[Mapping[str, Any]]],
    say: Callable[[str], None],
    *,
    names_classes: bool = True,
) -> Played:
    """Play `trace` once; `names_classes` False sends every request without a class."""
    load = Load(f"{system.gateway_url}/v1", model, prompts, names_classes=names_classes)
    phases: list[list[Reading]] = []
    try:
        for phase in trace.phases:
            await load.shift_to(phase)
            looks = [await asyncio.to_thread(system.read)]
            ends_at = time.monotonic() + phase.seconds
            while (left := ends_at - time.monotonic()) > 0:
                await asyncio.sleep(min(LOOK_S, left))
                looks.append(await asyncio.to_thread(system.read))
                if sys.stdout.isatty():
                    sys.stdout.write("\r\033[K" + _line(phase.name, looks[-2], looks[-1]))
                    sys.stdout.flush()
            phases.append(looks)
            say(_line(phase.name, looks[0], looks[-1]))
        if load.failed:
            say(f"  failed requests: {dict(load.failed)} of {load.sent}")
        return Played(phases, load.sent, dict(load.failed))
    finally:
        await load.close()


def _line(name: str, before: Reading, now: Reading) -> str:
    parts = []
    for traffic_class in sorted(now.drafts):
        drafts = now.drafts[traffic_class] - before.drafts.get(traffic_class, 0.0)
        if drafts > 0:
            tokens = now.draft_tokens[traffic_class] - before.draft_tokens.get(traffic_class, 0.0)
            parts.append(f"{traffic_class} K={now.active_k.get(traffic_class, 0)} AL={tokens / drafts:.2f}")
    rate = (now.tokens - before.tokens) / (now.at - before.at)
    return f"  {name:<18}{rate:7.0f} tok/s   {'  '.join(parts)}"
