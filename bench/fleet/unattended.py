"""`specpilot bench unattended`: requests that fail on one machine behind a managed endpoint, every part killed once.

Starts `specpilot up --sagemaker` on the demo pair, like an endpoint's container, and calls `/invocations`
(`bench.fleet.endpoint_calls`) for `--minutes`. Redis, controller, gateway and engine are killed (SIGKILL) one at a
time, at equal intervals. While a part is away:

| part              | requests that may fail                                      | `/ping`   |
|-------------------|-------------------------------------------------------------|-----------|
| Redis, controller | none                                                        | 200       |
| gateway           | those in flight there, and new ones until it is restarted   | no answer |
| engine            | those in flight there, and new ones until it has loaded     | 503       |

It fails when another request fails, when a whole answer is wrong, when `/ping` differs from the table, when the memory
of a part grows in its last life (the 95 % interval of the slope after the warm-up, `bench.report.slope`, lies above
`--slope-mib`; lives below two minutes are too short to judge), or when the supervisor's exit status is not 0. A table,
then one JSON object as the last line.
"""

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from specpilot.bench.fleet.endpoint_calls import Callers, Fault
from specpilot.bench.load.system import wait_for
from specpilot.bench.report.markdown import table
from specpilot.bench.report.output import say
from specpilot.bench.report.process_tree import memory_of
from specpilot.bench.report.slope import slope
from specpilot.demo_model import DEMO_MODEL
from specpilot.policy.settings import ProgramSettings, fail, load

PROGRAM = "specpilot bench unattended"
PARTS = {"redis": "redis-server", "controller": "specpilot.cli controller", "gateway": "specpilot.cli gateway"}
PARTS["engine"] = "--served-model-name"
SERVES_ON = ("redis", "controller")
"""Parts without which requests are served."""
AWAY_LIMIT_S = 300.0
SLACK_S = 2.0
"""Seconds after a part's return in which requests may still fail."""
READ_EVERY_S = 5.0
SHOWN_FAULTS = 20
_MIB = 1 << 20


class UnattendedSettings(ProgramSettings):
    """Call one unattended machine for a while, kill each part once, and count the failed requests."""

    model_config = SettingsConfigDict(env_prefix="SPECPILOT_BENCH_UNATTENDED_")

    minutes: float = Field(default=60.0, gt=0, description="duration of the load")
    clients: int = Field(default=3, ge=1, description="clients at once, each with a pause of half a second")
    pair: Path = Field(default=DEMO_MODEL, description="folder with target/ and peagle/")
    ready_within_s: float = Field(default=600.0, gt=0, description="seconds that it may take to be ready")
    slope_mib: float = Field(
        default=1.0, ge=0, description="tolerated growth of a part's memory a minute, in MiB; Redis fills by 0.3"
    )
    out: Path = Field(default=Path(".specpilot/bench-unattended"), description="folder for the log and the state")
    port: int = Field(default=8860, ge=1, le=65000, description="first of the ports to use")


@dataclass(frozen=True, slots=True)
class Death:
    """One part killed: the time (monotonic seconds), the seconds that it was away, and the counts meanwhile."""

    part: str
    killed_at: float
    away_s: float
    sent: int
    failed: int
    pings_refused: int


class Memory:
    """The memory of each part in its present life: readings of minutes and MiB."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        """`process` is the supervisor."""
        self._process = process
        self._pids: dict[str, int | None] = {}
        self._read_at = float("-inf")
        self.readings: dict[str, list[tuple[float, float]]] = {part: [] for part in PARTS}

    def read(self) -> None:
        """Read each, at most once every few seconds."""
        now = time.monotonic()
        if now - self._read_at < READ_EVERY_S:
            return
        self._read_at = now
        for part in PARTS:
            pid = _pid_of(part, self._process)
            if pid != self._pids.get(part):
                self.readings[part].clear()
            self._pids[part] = pid
            if pid is not None:
                self.readings[part].append((now / 60, memory_of(pid) / _MIB))

    def slopes(self) -> dict[str, list[float | None]]:
        """Return the slope of each, MiB a minute: low, middle and high; `None` when the readings are too few."""
        return {
            part: [round(item, 2) if math.isfinite(item) else None for item in slope(readings)]
            for part, readings in self.readings.items()
        }


def main(arguments: Sequence[str]) -> None:
    """Run it; the last line is one JSON object, and the exit status is 1 after a violated expectation."""
    settings = load(UnattendedSettings, PROGRAM, arguments)
    if not (settings.pair / "target" / "config.json").is_file():
        fail(PROGRAM, f"--pair: no target in {settings.pair}; name a folder with target/ and peagle/")
    settings.out.mkdir(parents=True, exist_ok=True)
    with (settings.out / "log").open("wb") as log:
        process = _start(settings, log)
    callers = Callers([settings.port], "demo", settings.clients)
    try:
        wait_for(PROGRAM, f"http://127.0.0.1:{settings.port}/ping", settings.ready_within_s)
        say("ready")
        callers.start()
        outcome = _play(settings, process, callers)
    finally:
        if any(thread.is_alive() for thread in callers.threads):
            callers.end()
        if process.poll() is None:
            process.terminate()
            process.wait(120.0)
    outcome["status"] = process.returncode
    broken = broken_promises(outcome, settings.slope_mib)
    say("\n" + markdown(outcome))
    for violation in broken:
        say(violation)
    say(json.dumps({**outcome, "broken_promises": broken}))
    sys.exit(1 if broken else 0)


def _start(settings: UnattendedSettings, log: Any) -> subprocess.Popen[bytes]:
    model = (settings.out / "model").resolve()
    model.mkdir(exist_ok=True)
    links = {path.name: path for path in (settings.pair / "target").iterdir()} | {"drafter": settings.pair / "peagle"}
    for name, path in links.items():
        (model / name).unlink(missing_ok=True)
        (model / name).symlink_to(path.resolve())
    stated = {
        "SM_VLLM_MODEL": str(model),
        "SM_VLLM_SERVED_MODEL_NAME": "demo",
        "SM_VLLM_MAX_NUM_SEQS": "8",
        "SAGEMAKER_BIND_TO_PORT": str(settings.port),
        "SPECPILOT_UP_HOST": "127.0.0.1",
        "SPECPILOT_UP_ADMIN_PORT": str(settings.port + 1),
        "SPECPILOT_UP_ENGINE_PORT": str(settings.port + 2),
        "SPECPILOT_UP_STATE_DIR": str((settings.out / "state").resolve()),
    }
    command = [sys.executable, "-P", "-m", "specpilot.cli", "up", "--sagemaker"]
    return subprocess.Popen(command, env=os.environ | stated, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def _play(settings: UnattendedSettings, process: subprocess.Popen[bytes], callers: Callers) -> dict[str, Any]:
    began, length_s = time.monotonic(), settings.minutes * 60
    total, memory = memory_of(process.pid), Memory(process)
    deaths = []
    for at, part in enumerate(PARTS, start=1):
        _sleep_until(began + length_s * at / (len(PARTS) + 1), process, memory)
        deaths.append(_kill(part, process, callers))
        say(f"{part}: {json.dumps(asdict(deaths[-1]))}")
    _sleep_until(began + length_s, process, memory)
    total_after = memory_of(process.pid)
    callers.end()
    outside = [fault for fault in callers.faults if not _is_excused(fault, deaths)]
    return {
        "minutes": settings.minutes,
        **{name: callers.counts[name] for name in ("sent", "ok", "refused", "lost", "wrong")},
        "deaths": [asdict(death) for death in deaths],
        "failed_outside": len(outside),
        "faults": [f"{fault.outcome}: {fault.detail}" for fault in outside[:SHOWN_FAULTS]],
        "memory_mib": [round(total / _MIB), round(total_after / _MIB)],
        "memory_slope_mib_per_min": memory.slopes(),
    }


def _sleep_until(at: float, process: subprocess.Popen[bytes], memory: Memory) -> None:
    while (remaining_s := at - time.monotonic()) > 0:
        if process.poll() is not None:
            fail(PROGRAM, f"it ended by itself, with status {process.returncode}; its log is in --out")
        memory.read()
        time.sleep(min(1.0, remaining_s))


def _kill(part: str, process: subprocess.Popen[bytes], callers: Callers) -> Death:
    pid = _pid_of(part, process)
    if pid is None:
        fail(PROGRAM, f"there is no {part} to kill; its log is in --out")
    requests, faults, pings = callers.counts["sent"], len(callers.faults), len(callers.pings)
    killed_at = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    while _pid_of(part, process) in {None, pid}:
        _within(killed_at, part)
    while part not in SERVES_ON and not callers.is_served_again(pings):
        _within(killed_at, part)
    away_s = time.monotonic() - killed_at
    time.sleep(SLACK_S)
    refused = sum(not ok for _, ok in callers.pings[pings:])
    failed = len(callers.faults) - faults
    return Death(part, killed_at, round(away_s, 1), callers.counts["sent"] - requests, failed, refused)


def _within(began: float, part: str) -> None:
    time.sleep(0.2)
    if time.monotonic() - began > AWAY_LIMIT_S:
        fail(PROGRAM, f"{part} is not back {AWAY_LIMIT_S:.0f} s after it was killed; its log is in --out")


def _pid_of(part: str, process: subprocess.Popen[bytes]) -> int | None:
    """Return the process id of a part: a child of the supervisor."""
    for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        try:
            command = Path(f"/proc/{child}/cmdline").read_bytes().decode().replace("\0", " ")
        except OSError:
            continue
        if PARTS[part] in command:
            return int(child)
    return None


def _is_excused(fault: Fault, deaths: Sequence[Death]) -> bool:
    """Return whether the request overlapped the absence of a part without which requests fail."""
    return fault.outcome != "wrong" and any(
        fault.ended >= death.killed_at and fault.began <= death.killed_at + death.away_s + SLACK_S
        for death in deaths
        if death.part not in SERVES_ON
    )


def broken_promises(outcome: dict[str, Any], slope_mib: float) -> list[str]:
    """Return the violated expectations; `slope_mib` is the tolerated growth of a part's memory a minute."""
    violations = []
    if outcome["failed_outside"]:
        violations.append(f"{outcome['failed_outside']} requests failed although nothing that they need was away")
    if outcome["wrong"]:
        violations.append(f"{outcome['wrong']} wrong answers")
    for death in outcome["deaths"]:
        if death["part"] in SERVES_ON and death["pings_refused"]:
            violations.append(f"/ping was refused while {death['part']} was away")
        if death["part"] not in SERVES_ON and not death["pings_refused"]:
            violations.append(f"/ping stayed 200 while {death['part']} was away")
    for part, (low, middle, _) in outcome["memory_slope_mib_per_min"].items():
        if low is not None and low > slope_mib:
            violations.append(f"the memory of {part} grows by {middle:g} MiB a minute, {low:g} at least")
    if outcome["status"]:
        violations.append(f"it ended with status {outcome['status']}")
    return violations


def markdown(outcome: dict[str, Any]) -> str:
    """Return the table."""
    heads = ("killed", "away, s", "sent meanwhile", "failed meanwhile", "/ping not 200")
    names = ("part", "away_s", "sent", "failed", "pings_refused")
    lines = table(heads, ([death[name] for name in names] for death in outcome["deaths"]))
    counts = ", ".join(f"{name} {outcome[name]}" for name in ("sent", "ok", "refused", "lost", "wrong"))
    totals = f"{outcome['minutes']:g} minutes: {counts}; failed otherwise {outcome['failed_outside']}"
    return "\n".join([*lines, "", totals]) + "\n"
