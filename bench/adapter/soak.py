"""`specpilot bench soak`: a real engine with the adapter under all kinds of load at once, for as long as you like.

Clients keep a mixed load in flight (streams, long prompts, structured outputs, `n` of 2, stop strings, and streams that
are closed midway) on a KV cache so small that requests are preempted, while K of every class, and of every band in
it, changes several times a second through `PUT /speculation`. It fails when

- a request is answered with anything but 200, a structured output does not fit its schema, or the engine ends;
- the engine, idle again, still holds a KV block or a request;
- memory grows: the 95 % interval of the slope of the engine's memory after the warm-up lies above `--slope-mib`.

With `--stock` vLLM's own scheduler gets the same load, at one K: a fault that occurs there too is not the adapter's.
"""

import asyncio
import json
import math
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from subprocess import Popen, TimeoutExpired
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from pydantic import Field
from pydantic_settings import SettingsConfigDict

from specpilot.bench.report.output import say
from specpilot.bench.report.process_tree import memory_by_name
from specpilot.bench.report.slope import slope
from specpilot.demo_model import DEMO_MODEL
from specpilot.policy import engine_metrics as names
from specpilot.policy.settings import ProgramSettings, fail, load

PROGRAM = "specpilot bench soak"
CLASSES = ("chat", "code", "json")
KINDS = ("stream", "aborted", "long", "structured", "two", "stopped")
FIELDS = {"name", "count"}
READ_EVERY_S = 2.0
START_WITHIN_S = 300.0
LAW_RATIO = 0.4
"""Share of the changes after which the engine's law chooses K of the class `default`."""
IDLE_WITHIN_S = 60.0
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "count": {"type": "integer", "maximum": 99}},
    "required": ["name", "count"],
    "additionalProperties": False,
}
_DRAFTER = str(DEMO_MODEL / "peagle")
_ADAPTER = ("specpilot.cli", "engine", "--drafter", _DRAFTER, "--k-max", "7", "--trust-this-machine")
_STOCK = (
    *("vllm.entrypoints.openai.api_server", "--speculative-config"),
    json.dumps({"method": "eagle3", "model": _DRAFTER, "num_speculative_tokens": 7, "parallel_drafting": True}),
)
_GIVEN_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""Makes glibc return free memory from 64 KiB on. By default it keeps the free memory of steps of many sizes, from time
to time more, with stock vLLM too; this growth would hide a leak."""

_MIB = 1 << 20


class SoakSettings(ProgramSettings):
    """Load a real engine with all kinds of requests at once and look for errors and leaks."""

    model_config = SettingsConfigDict(env_prefix="SPECPILOT_BENCH_SOAK_")

    minutes: float = Field(default=10.0, gt=0, description="how long the load lasts")
    clients: int = Field(default=20, ge=1, description="requests in flight")
    port: int = Field(default=8190, ge=1, le=65535, description="port of the engine that is started")
    slope_mib: float = Field(default=1.0, ge=0, description="tolerated growth of memory a minute, in MiB")
    seed: int = Field(default=1, description="seed of the load")
    longest_tokens: int = Field(default=600, ge=1, description="most tokens of a reply; fewer for a slow engine")
    stock: bool = Field(default=False, description="load vLLM without the adapter instead, with K at its largest")


class Soak:
    """One run against the engine at `url`: requests, faults, readings."""

    def __init__(self, settings: SoakSettings, url: str, engine: Popen[bytes]) -> None:
        self.requests: Counter[str] = Counter()
        self.errors: list[str] = []
        self.memory: list[tuple[float, dict[str, float]]] = []
        self.changes = 0
        self._settings = settings
        self._url = url
        self._engine = engine
        self._rng = random.Random(settings.seed)  # noqa: S311 - a reproducible load
        self._prompts = {
            name: [json.loads(line) for line in (DEMO_MODEL / "prompts" / f"{name}.jsonl").read_text().splitlines()]
            for name in CLASSES
        }
        self._ends_at = 0.0

    async def run(self) -> dict[str, Any]:
        """Load the engine, wait until it is idle and return the report."""
        timeout = aiohttp.ClientTimeout(total=300.0)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(self._url, timeout=timeout, connector=connector) as session:
            await self._wait_until_up(session)
            self._ends_at = time.monotonic() + 60.0 * self._settings.minutes
            clients = [self._client(session) for _ in range(self._settings.clients)]
            thrash = [] if self._settings.stock else [self._thrash(session)]
            await asyncio.gather(*thrash, self._watch(), *clients)
            return await self._report(session)

    @property
    def _is_over(self) -> bool:
        return time.monotonic() >= self._ends_at or self._engine.poll() is not None

    async def _wait_until_up(self, session: aiohttp.ClientSession) -> None:
        end = time.monotonic() + START_WITHIN_S
        while self._engine.poll() is None and time.monotonic() < end:
            try:
                async with session.get("/health") as reply:
                    if reply.status == 200:  # noqa: PLR2004 - HTTP's own
                        return
            except aiohttp.ClientError:
                await asyncio.sleep(0.5)
        fail(PROGRAM, "the engine did not start; its last lines are above")

    async def _client(self, session: aiohttp.ClientSession) -> None:
        while not self._is_over:
            kind = self._rng.choice(KINDS)
            try:
                await self._ask(session, kind)
                self.requests[kind] += 1
            except (aiohttp.ClientError, TimeoutError, ValueError, KeyError) as error:
                self._note(f"{kind}: {type(error).__name__}: {error}")
                await asyncio.sleep(0.5)

    async def _ask(self, session: aiohttp.ClientSession, kind: str) -> None:
        body = self._body(kind)
        async with session.post("/v1/chat/completions", json=body) as reply:
            if reply.status != 200:  # noqa: PLR2004 - HTTP's own
                raise ValueError(f"{reply.status} {(await reply.text())[:200]}")
            if kind == "aborted":
                for _ in range(self._rng.randrange(1, 20)):
                    await reply.content.readline()
                reply.close()
                return
            text = await reply.text()
        if body.get("stream"):
            if not text.rstrip().endswith("data: [DONE]"):
                raise ValueError(f"the stream ended with {text[-200:]!r}")
            return
        choices = json.loads(text)["choices"]
        if len(choices) != body.get("n", 1):
            raise ValueError(f"{len(choices)} choices")
        if kind == "structured" and choices[0]["finish_reason"] == "stop":
            document = json.loads(choices[0]["message"]["content"])
            if set(document) != FIELDS:
                raise ValueError(f"does not fit the schema: {document}")

    def _body(self, kind: str) -> dict[str, Any]:
        rng = self._rng
        traffic_class = rng.choice(CLASSES)
        messages = rng.choice(self._prompts[traffic_class])["messages"]
        body: dict[str, Any] = {
            "model": "demo",
            "messages": messages,
            "max_tokens": min(rng.choice((16, 64, 200, 600)), self._settings.longest_tokens),
            "temperature": rng.choice((0.0, 0.0, 0.8)),
            "vllm_xargs": {"traffic_class": traffic_class},
        }
        match kind:
            case "stream" | "aborted":
                body["stream"] = True
            case "long":
                text = "Read this, and then go on. " * rng.randrange(20, 90)
                body["messages"] = [{"role": "user", "content": text + messages[-1]["content"]}]
            case "structured":
                body["response_format"] = {"type": "json_schema", "json_schema": {"name": "item", "schema": SCHEMA}}
            case "two":
                body |= {"n": 2, "temperature": 0.8}
            case "stopped":
                body["stop"] = [" the", "return"]
        return body

    async def _thrash(self, session: aiohttp.ClientSession) -> None:
        """Change K at random, often to 0 for all requests for a while."""
        while not self._is_over:
            classes = {name: {"k_min": k, "k_max": k} for name, k in self._k_of_classes().items()}
            classes["default"] |= {"k_max": 7} if self._rng.random() < LAW_RATIO else {}
            guidance = {"classes": classes, "probe_ratio": self._rng.choice((0.0, 0.02, 0.3))}
            try:
                async with session.put("/speculation", json={"guidance": guidance}) as reply:
                    if reply.status != 200:  # noqa: PLR2004 - HTTP's own
                        self._note(f"PUT /speculation: {reply.status} {await reply.text()}")
            except (aiohttp.ClientError, TimeoutError) as error:
                self._note(f"PUT /speculation: {type(error).__name__}: {error}")
            self.changes += 1
            await asyncio.sleep(self._rng.choice((0.02, 0.2, 1.5)))

    def _k_of_classes(self) -> dict[str, int]:
        """Return K by class: 0 for all, or one K a class, so that the drafted requests keep changing."""
        classes = ("default", *CLASSES)
        if self._rng.random() < LAW_RATIO:
            return dict.fromkeys(classes, 0)
        return {name: self._rng.randrange(8) for name in classes}

    async def _watch(self) -> None:
        began = time.monotonic()
        while not self._is_over:
            minutes = (time.monotonic() - began) / 60.0
            memory = {name: size / _MIB for name, size in memory_by_name(self._engine.pid).items()}
            mib = memory["all"] = sum(memory.values())
            self.memory.append((minutes, memory))
            say(
                f"\r{minutes:5.1f} of {self._settings.minutes:g} min  {self.requests.total():6d} requests  "
                f"{self.changes:5d} changes of K  {mib:6.0f} MiB  {len(self.errors)} errors ",
                end="" if sys.stdout.isatty() else "\n",
            )
            await asyncio.sleep(READ_EVERY_S if sys.stdout.isatty() else 5 * READ_EVERY_S)
        if self._engine.poll() is not None:
            self._note(f"the engine ended with status {self._engine.returncode}")

    async def _report(self, session: aiohttp.ClientSession) -> dict[str, Any]:
        held: dict[str, float] = {}
        end = time.monotonic() + IDLE_WITHIN_S
        metrics: Counter[str] = Counter()
        while self._engine.poll() is None:
            try:
                metrics = await _metrics(session)
            except (aiohttp.ClientError, TimeoutError) as error:
                self._note(f"GET /metrics: {type(error).__name__}: {error}")
                break
            held = {
                "requests_running": metrics["vllm:num_requests_running"],
                "requests_waiting": metrics["vllm:num_requests_waiting"],
                "kv_cache_usage_ratio": metrics["vllm:kv_cache_usage_perc"],
            }
            if not any(held.values()) or time.monotonic() > end:
                break
            await asyncio.sleep(0.5)
        low, middle, high = self._slope("all")
        faults = list(self.errors)
        faults += [f"still there at the end: {name} {value}" for name, value in held.items() if value]
        if low > self._settings.slope_mib:
            faults.append(f"memory grows by {middle:.1f} MiB a minute (95 %: {low:.1f} to {high:.1f})")
        return {
            "minutes": self._settings.minutes,
            "requests": dict(self.requests),
            "changes_of_k": self.changes,
            "preemptions": metrics["vllm:num_preemptions_total"] if held else None,
            "generated_tokens": metrics["vllm:generation_tokens_total"] if held else None,
            "catch_up_steps": metrics[f"{names.STEPS} {names.CATCH_UP}"] if held else None,
            "memory": {name: self._memory_of(name) for name in self.memory[-1][1]} if self.memory else None,
            "left_over": held,
            "faults": faults,
        }

    def _slope(self, process: str) -> tuple[float, float, float]:
        return slope([(minutes, memory.get(process, 0.0)) for minutes, memory in self.memory])

    def _memory_of(self, process: str) -> dict[str, Any]:
        """Return the MiB of the processes of a name at the start of the readings that `slope` uses and at the end."""
        settled = [memory.get(process, 0.0) for _, memory in self.memory[len(self.memory) // 4 :]]
        slopes = [round(item, 2) if math.isfinite(item) else None for item in self._slope(process)]
        return {"mib": [round(settled[0]), round(settled[-1])], "slope_mib_per_min": slopes}

    def _note(self, text: str) -> None:
        self.errors.append(text)
        say(f"\n{text}")


async def _metrics(session: aiohttp.ClientSession) -> Counter[str]:
    """Return the engine's metrics by name, summed over their labels; steps also by name and kind."""
    async with session.get("/metrics") as reply:
        text = await reply.text()
    sums: Counter[str] = Counter()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            sums[sample.name] += sample.value  # type: ignore[assignment]
            if kind := sample.labels.get(names.LABEL_KIND):
                sums[f"{sample.name} {kind}"] += sample.value  # type: ignore[assignment]
    return sums


def main(arguments: Sequence[str]) -> None:
    """Run it; the last line is one JSON object, and the exit status is 1 after a fault."""
    settings = load(SoakSettings, PROGRAM, arguments)
    command = [sys.executable, "-P", "-m", *(_STOCK if settings.stock else _ADAPTER)]
    command += ["--model", str(DEMO_MODEL / "target"), "--port", str(settings.port)]
    command += ["--served-model-name", "demo", "--enforce-eager", "--max-num-seqs", "32", "--max-model-len", "1024"]
    command += ["--max-num-batched-tokens", "512", "--num-gpu-blocks-override", "60"]
    environment = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"} | _GIVEN_BACK
    with tempfile.TemporaryFile("w+b") as log:
        engine = Popen(command, env=environment, stdout=log, stderr=log)
        try:
            report = asyncio.run(Soak(settings, f"http://127.0.0.1:{settings.port}", engine).run())
        finally:
            is_alive = engine.poll() is None
            engine.terminate()
            with suppress(TimeoutExpired):
                engine.wait(60.0)
            engine.kill()
            if not is_alive:
                log.seek(0)
                say(log.read()[-3000:].decode(errors="replace"))
    say("\n" + json.dumps(report))
    sys.exit(1 if report["faults"] else 0)
