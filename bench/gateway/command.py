"""`specpilot bench gateway`: the gateway's cost beside a direct connection, and beside others that you name.

An engine answers at once with canned bytes (`bench.gateway.canned_engine`), so that only the gateway is measured. Every
scenario runs against each target, one after the other, several rounds in one run; figures are medians over the rounds.
CPU time is that of the target's whole process tree, from the kernel. Added latencies are the difference to the direct
connection, percentile by percentile, in the same round.

One target is the lower bound of any gateway on this stack: `uvloop + httptools` relays bytes and parses where each
message ends (`bench.gateway.uvloop_relay`). The difference to the gateway is the gateway's own cost.

Other gateways: `--peer 'name=command with {port} and {engine}'`, as often as you like. They get no API key and requests
for the model `canned`. Two of them in Rust, from PyPI; each needs another port for its metrics:

    --peer 'vllm-router=vllm-router --host 127.0.0.1 --port {port} --worker-urls {engine} --policy round_robin
    --prometheus-port 29201'
    --peer 'sglang-router=sglang-router launch --host 127.0.0.1 --port {port} --worker-urls {engine}
    --policy round_robin --prometheus-port 29202'

LiteLLM, in an environment of its own (`pip install 'litellm[proxy]'`), needs flags against fetching prices, against
the master key, and against ending a stream that repeats itself. It makes a round about four minutes longer:

    --peer 'litellm=env LITELLM_LOCAL_MODEL_COST_MAP=True LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY=true
    REPEATED_STREAMING_CHUNK_LIMIT=1000000 OPENAI_API_KEY=none litellm --model openai/canned --alias canned
    --api_base {engine}/v1 --host 127.0.0.1 --port {port}'
"""

import asyncio
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import uvloop
from pydantic import Field
from pydantic_settings import SettingsConfigDict

from specpilot.bench.chosen import chosen
from specpilot.bench.gateway.canned_engine import MODEL
from specpilot.bench.gateway.figures import (
    DIRECT,
    OURS,
    PLAIN,
    SCENARIOS,
    STACK_FLOOR,
    Sample,
    Scenario,
    markdown,
    summary,
)
from specpilot.bench.gateway.judged_call import OK, Call, Caller, connect
from specpilot.bench.processes import end
from specpilot.bench.report.process_tree import cpu_s_of, memory_of
from specpilot.policy.settings import ProgramSettings, fail, load

PROGRAM = "specpilot bench gateway"
START_WITHIN_S = 120.0
STAGGER_S = 0.005
"""Seconds between the begins of two paced streams, so that their first bytes do not compete."""


class GatewayBenchSettings(ProgramSettings):
    """Measure the gateway's cost beside other paths to an engine."""

    model_config = SettingsConfigDict(env_prefix="SPECPILOT_BENCH_GATEWAY_")

    shares_prefix = True

    only: str = Field(
        default="", description=f"scenarios to play, comma separated: {', '.join(SCENARIOS)}; default: all"
    )
    rounds: int = Field(default=3, ge=1, description="rounds; figures are medians over them")
    peer: tuple[str, ...] = Field(default=(), description="another gateway: name=command with {port} and {engine}")
    port: int = Field(default=8580, ge=1, le=65000, description="first of the ports to use")
    compiled: Path | None = Field(
        default=None,
        description="folder of `make compiled` with the gateway's hot path as C; measured beside the plain one",
    )
    workers: int = Field(default=1, ge=1, description="more than 1: measure the gateway with as many workers, too")
    scale: float = Field(default=1.0, gt=0, description="make every scenario this many times as long")


def main(arguments: Sequence[str]) -> None:
    """Run it; the last line is one JSON object."""
    settings = load(GatewayBenchSettings, PROGRAM, arguments)
    names = chosen(PROGRAM, "--only", settings.only, SCENARIOS) or [*SCENARIOS]
    scenarios = [scenario for name, scenario in SCENARIOS.items() if name in names]
    engine = f"http://127.0.0.1:{settings.port}"
    commands = _commands(settings, engine)
    canned = subprocess.Popen([sys.executable, "-P", "-m", "specpilot.bench.gateway.canned_engine", str(settings.port)])
    ports = {DIRECT: settings.port} | {name: settings.port + 1 + at for at, name in enumerate(commands)}
    targets = {DIRECT: canned}
    samples: dict[tuple[str, str], list[Sample]] = {}
    try:
        for name, command in commands.items():
            words = shlex.split(command.format(port=ports[name], engine=engine))
            targets[name] = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for name, port in ports.items():
            _wait_for(name, port, targets[name])
        for round_ in range(settings.rounds):
            for scenario in scenarios:
                order = list(targets) if round_ % 2 == 0 else list(reversed(targets))
                for name in order:
                    _say_live(f"round {round_ + 1} of {settings.rounds}: {scenario.name}, {name}")
                    sample = uvloop.run(_run(scenario, settings.scale, ports[name], targets[name].pid))
                    samples.setdefault((scenario.name, name), []).append(sample)
    finally:
        end(*targets.values(), within_s=10.0)
    _say_live("")
    print(markdown(samples, scenarios, list(targets)))
    print(json.dumps(summary(samples, scenarios, list(targets))))


def _commands(settings: GatewayBenchSettings, engine: str) -> dict[str, str]:
    """Return the command of each target; {port} and {engine} are filled in later."""
    flags = f"-m specpilot.cli gateway --engine {engine} --port {{port}}"
    plain = f"{sys.executable} -P {flags}"
    gateway = plain if settings.compiled is None else _compiled(settings.compiled, flags)
    workers = settings.workers
    commands = {
        STACK_FLOOR: f"{sys.executable} -P -m specpilot.bench.gateway.uvloop_relay {{port}} {settings.port}",
        OURS: gateway,
        **({} if workers == 1 else {f"{OURS}, {workers} workers": f"{gateway} --workers {workers}"}),
        **({} if settings.compiled is None else {PLAIN: plain}),
    }
    for item in settings.peer:
        name, _, command = item.partition("=")
        if not command or "{port}" not in command:
            fail(PROGRAM, f"--peer: {item!r} is not name=command with {{port}} and {{engine}}")
        commands[name] = command
    return commands


def _compiled(folder: Path, flags: str) -> str:
    """Return the command of a gateway whose hot path is the one compiled in `folder`."""
    start = ["env", f"PYTHONPATH={folder.resolve()}", sys.executable, "-P"]
    process = subprocess.run(
        [*start, "-c", "import specpilot.gateway.relay.relay as relay; print(relay.__file__)"],
        capture_output=True,
        text=True,
        check=False,
    )
    if not process.stdout.strip().endswith(".so"):
        fail(PROGRAM, f"--compiled: nothing compiled in {folder}; run `make compiled`")
    return f"{shlex.join(start)} {flags}"


async def _run(scenario: Scenario, scale: float, port: int, pid: int) -> Sample:
    total = max(scenario.connections, round(scenario.requests * (1.0 if scenario.kind == "paced" else scale)))
    is_stream = scenario.kind != "json"
    body = json.dumps({
        "model": MODEL,
        "messages": [{"role": "user", "content": f"{scenario.kind} {'x' * scenario.padding}"}],
        "stream": is_stream,
    }).encode()  # fmt: skip
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        b"x-traffic-class: default\r\ncontent-length: %d\r\n\r\n"
    ) % len(body)
    call = Call(scenario.kind, head, body, "", marker=b"[DONE]" if is_stream else b'"chat.completion"')
    before, cpu = memory_of(pid), cpu_s_of(pid)
    numbers = iter(range(total))
    sample = Sample(0.0, 0.0, 0, 0)
    began = time.perf_counter()
    watching = asyncio.create_task(_watch_memory(pid, before, sample))
    pause_s = STAGGER_S if scenario.kind == "paced" else 0.0
    clients = (_client(port, call, numbers, sample, pause_s * at) for at in range(scenario.connections))
    await asyncio.gather(*clients)
    sample.seconds = time.perf_counter() - began
    watching.cancel()
    sample.cpu_s = cpu_s_of(pid) - cpu
    return sample


async def _client(port: int, call: Call, numbers: Iterator[int], sample: Sample, after_s: float) -> None:
    await asyncio.sleep(after_s)
    caller: Caller | None = None
    for _ in numbers:
        if caller is None or caller.is_closed:
            caller = await connect(port)
        if await caller.ask(call) != OK:
            sample.failed += 1
            caller.close()
            continue
        first, *between = (later - earlier for earlier, later in pairwise(caller.times))
        sample.first.append(first)
        sample.between += between
    if caller is not None:
        caller.close()


async def _watch_memory(pid: int, before: int, sample: Sample) -> None:
    """Record the largest growth of the process tree in `sample`."""
    while True:
        sample.memory = max(sample.memory, memory_of(pid) - before)
        await asyncio.sleep(0.2)


def _wait_for(name: str, port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until a chat request through the target is answered."""
    deadline = time.monotonic() + START_WITHIN_S
    while True:
        try:
            sample = uvloop.run(_run(Scenario("start", 1, 1), 1.0, port, process.pid))
        except OSError:
            sample = Sample(0.0, 0.0, 0, 1)
        if sample.first:
            return
        if process.poll() is not None or time.monotonic() > deadline:
            fail(PROGRAM, f"{name} did not answer a request within {START_WITHIN_S:.0f} s")
        time.sleep(0.5)


def _say_live(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{text}")
        sys.stderr.flush()
    elif text:
        sys.stderr.write(text + "\n")
