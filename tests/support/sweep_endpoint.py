"""An endpoint that a sweep can measure, and a small sweep over such."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from fastapi import Request

from specpilot.bench.sweep import command
from specpilot.engine_adapter.agent.endpoint import SpeculationEndpoint
from tests.support.scripted_engine import (
    DONE,
    LAST_CHUNK,
    SSE_HEAD,
    Script,
    ScriptedEngine,
    Seen,
    chunk,
    event,
    reply,
    usage_event,
)

ANSWER: Script = [SSE_HEAD, chunk(event("hi")), chunk(event("", finish="length")), chunk(usage_event(4)), chunk(DONE),
                  LAST_CHUNK]  # fmt: skip


class Endpoint(ScriptedEngine):
    """An OpenAI-compatible server with vLLM's counters and, with the adapter, SpecPilot's `/speculation`.

    `slow_s` is the time of a request, from `slow_after` requests on if that is set. With `guard` it is on another
    machine, and the adapter's own rule decides which clients may set K.
    """

    def __init__(
        self,
        *,
        has_adapter: bool = False,
        schedule: dict[str, Any] | None = None,
        slow_s: float = 0.0,
        guard: SpeculationEndpoint | None = None,
    ) -> None:
        super().__init__()
        self.metrics = None
        self.has_adapter = has_adapter
        self.slow_s = slow_s
        self.guard = guard
        self.schedule = schedule
        self.version = 0 if schedule is None else 40
        self.calibrations_left = 0
        self.under_way, self.under_way_at = asyncio.Event(), 1
        self.slow_after: int | None = None
        self.asked: list[dict[str, Any]] = []
        self.ks: list[int] = []
        self.choose = self.play

    def state(self) -> dict[str, Any]:
        """The shape of `engine_adapter.agent.core_methods.state`."""
        self.calibrations_left -= 1
        guidance = (self.schedule or {}).get("guidance", {})
        source = "law" if self.schedule is None or "classes" in guidance else "fixed"
        return {
            "k_max": 7,
            "static_k": 5,
            "source": "calibrating" if self.calibrations_left >= 0 else source,
            "version": self.version,
            "age_s": None if self.schedule is None else 10.0,
            "schedule": self.schedule,
        }

    def apply(self, schedule: dict[str, Any]) -> None:
        self.version += 1
        self.schedule = {**schedule, "version": self.version}

    def refusal(self, seen: Seen) -> bytes | None:
        caller = SimpleNamespace(headers=seen.headers, client=SimpleNamespace(host="10.0.0.7"))
        refused = self.guard._refusal(cast("Request", caller)) if self.guard is not None else None
        return reply(bytes(refused.body), f"{refused.status_code} Refused") if refused is not None else None

    def play(self, seen: Seen) -> Script:
        if seen.path == "/metrics":
            drafts = 10 * len(self.asked)
            counts = {"num_drafts": drafts, "num_draft_tokens": 3 * drafts, "num_accepted_tokens": 2 * drafts}
            text = "".join(
                f"# TYPE vllm:spec_decode_{name}_total counter\nvllm:spec_decode_{name}_total {count}\n"
                for name, count in counts.items()
            )
            return [reply(text.encode())]
        if seen.path == "/speculation":
            if not self.has_adapter:
                return [reply(b"{}", "404 Not Found")]
            if (refusal := self.refusal(seen)) is not None:
                return [refusal]
            if seen.line.startswith(b"PUT"):
                self.ks.append(seen.json["guidance"].get("override", {}).get("k"))
                self.apply(seen.json)
            return [reply(json.dumps(self.state()).encode())]
        self.asked.append(seen.json)
        if len(self.asked) == self.under_way_at:
            self.under_way.set()
        is_slow = self.slow_after is None or len(self.asked) > self.slow_after
        return [self.slow_s if is_slow else 0.0, *ANSWER]


def arguments(out: Path, endpoints: str) -> list[str]:
    """A small sweep: two loads, of 3 and 6 requests, after 6 to warm up."""
    flags = ["--endpoints", endpoints, "--out", str(out), "--data", "json", "--repetitions", "1"]
    return [*flags, "--num-prompts", "2", "--concurrency", "1,2"]


async def sweep(out: Path, endpoints: str, *more: str) -> int:
    """Run the command in a thread; return its exit status."""

    def run() -> int:
        try:
            command.main([*arguments(out, endpoints), *more])
        except SystemExit as ended:
            return int(ended.code or 0)
        return 0

    return await asyncio.to_thread(run)


def cells(out: Path) -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text()) for path in (out / "cells").iterdir()}
