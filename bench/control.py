"""`specpilot bench control`: the control law on a real engine, beside everything that a user could do without it.

Starts a system of its own. Arms, each playing the same unannounced trace, several times, in an order that turns round
from one repetition to the next:

- `K=k`: every request verifies k draft tokens, K = 0 being no speculation;
- `table`: K by batch size, tuned by hand on this very trace (from the first repetition's static arms): what a diligent
  user would have if vLLM's dynamic speculation worked with P-EAGLE;
- `adaptive`: a fresh controller;
- `without ...`: the same with one idea of the law switched off; `without classes`: requests do not name their class.

In static arms no controller runs. The report has a table, plots, and one JSON object as its last line. What each
controller saw is beside it, to be looked into with `specpilot replay`.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from bench import control_report as report
from bench.chosen import chosen
from bench.play import Played, play
from bench.system import System, start_own, stop_own, wait_for
from bench.trace import TRACES, Trace, read_prompts, read_trace
from policy.errors import InvalidDocumentError
from policy.settings import ProgramSettings, fail, load
from specpilot import embedded_redis

PROGRAM = "specpilot bench control"
MAX_RUNNING = 32
START_WITHIN_S = 300.0
SETTLES_S = 2.0
CLASSES = "classes"
ABLATIONS = (CLASSES, "probes", "change-detection", "guard", "cost-learning")
_CHANGES = ("gain", "explore", "rollback", "bounds")


class ControlBenchSettings(ProgramSettings):
    """Measure the controller on a real engine, beside static K and a table tuned by hand."""

    model_config = SettingsConfigDict(env_prefix="SPECPILOT_BENCH_CONTROL_")

    trace: Path = Field(default=TRACES / "control.json", description="phases to play")
    prompts: Path = Field(
        default=Path(__file__).resolve().parent.parent / "deploy" / "demo_model" / "prompts",
        description="folder with <class>.jsonl",
    )
    repeats: int = Field(default=3, ge=1, description="plays of each arm")
    static: str = Field(default="0,1,2,3,5,7", description="static K to compare with, comma separated")
    without: str = Field(
        default=",".join(ABLATIONS),
        description="ablations, comma separated; none for none",
    )
    stretch: float = Field(default=1.0, gt=0, description="make every phase this many times as long")
    out: Path = Field(default=Path(".specpilot/bench-control"), description="folder for report.md and plot.svg")
    port: int = Field(default=8480, ge=1, le=65000, description="first of the ports to use")


def main(arguments: Sequence[str]) -> None:
    """Run it; the last line is one JSON object."""
    settings = load(ControlBenchSettings, PROGRAM, arguments)
    try:
        trace = read_trace(settings.trace).stretched(settings.stretch)
        prompts = read_prompts(settings.prompts, trace.classes)
        statics = sorted({int(item) for item in settings.static.split(",") if item})
    except InvalidDocumentError as error:
        fail(PROGRAM, f"--trace: {error}")
    except OSError as error:
        fail(PROGRAM, f"{error.filename}: {error.strerror}")
    except ValueError:
        fail(PROGRAM, f"--static: {settings.static!r} is not a list of numbers like 0,3,7")
    ablations = [] if settings.without == "none" else chosen(PROGRAM, "--without", settings.without, ABLATIONS)
    settings.out.mkdir(parents=True, exist_ok=True)
    with _system(settings) as (system, redis_url):
        bench = _Bench(settings, system, redis_url, trace, prompts)
        result, table = asyncio.run(bench.run(statics, ablations))
    text = report.markdown(result, table)
    figures = json.dumps(report.summary(result))
    (settings.out / "report.md").write_text(f"{text}\n![plot](plot.svg)\n\n```json\n{figures}\n```\n")
    report.plot(result, settings.out / "plot.svg")
    _say(f"\n{text}\nreport and plot: {settings.out}\n{figures}")


class _Bench:
    """Plays the arms."""

    def __init__(
        self, settings: ControlBenchSettings, system: System, redis_url: str, trace: Trace, prompts: dict[str, Any]
    ) -> None:
        self._settings = settings
        self._system = system
        self._redis_url = redis_url
        self._trace = trace
        self._prompts = prompts
        self._switches = 0
        self._adaptive_s = 0.0
        self._played = 0
        self._all = 0

    async def run(self, statics: Sequence[int], ablations: Sequence[str]) -> tuple[report.Result, list[list[int]]]:
        """Return the result, and the table tuned by hand on the first repetition."""
        fixed = {f"K={k}": [[1, MAX_RUNNING, k]] for k in statics}
        steered = [report.ADAPTIVE, *(f"without {idea}" for idea in ablations)]
        plays: dict[str, list[Played]] = {arm: [] for arm in [*fixed, report.TABLE, *steered]}
        self._all = len(plays) * self._settings.repeats
        for arm, ranges in fixed.items():
            plays[arm].append(await self._fixed(arm, ranges))
        table = report.hand_tuned(self._trace, {k: plays[f"K={k}"][0].rates for k in statics}, MAX_RUNNING)
        order = [*fixed, report.TABLE, *steered]
        for repetition in range(self._settings.repeats):
            for arm in order if repetition % 2 == 0 else reversed(order):
                if repetition == 0 and arm in fixed:
                    continue
                if arm in steered:
                    plays[arm].append(await self._steered(arm))
                else:
                    plays[arm].append(await self._fixed(arm, fixed.get(arm, table)))
        return report.Result(self._trace, plays, self._switches, self._adaptive_s), table

    async def _fixed(self, arm: str, ranges: list[list[int]]) -> Played:
        await asyncio.to_thread(self._system.put_speculation, {"classes": {"default": ranges}})
        return await self._play(arm)

    async def _steered(self, arm: str) -> Played:
        idea = arm.removeprefix("without ")
        flags = [] if arm == report.ADAPTIVE or idea == CLASSES else ["--without", idea]
        record = self._settings.out / f"{arm.replace(' ', '-')}-{self._played + 1}.jsonl"
        record.unlink(missing_ok=True)
        controller = await asyncio.to_thread(self._start_controller, [*flags, "--record", str(record)])
        try:
            await asyncio.to_thread(wait_for, PROGRAM, f"{self._system.admin_url}/health", 30.0)
            began = time.time()
            played = await self._play(arm, names_classes=idea != CLASSES)
            if arm == report.ADAPTIVE:
                decisions = await asyncio.to_thread(self._system.decisions, "demo", began)
                self._switches += sum(item["reason"] in _CHANGES for item in decisions)
                self._adaptive_s += time.time() - began
            return played
        finally:
            controller.terminate()
            await asyncio.to_thread(controller.wait, 30.0)

    def _start_controller(self, flags: Sequence[str]) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "specpilot.cli", "controller", "--redis-url", self._redis_url, *flags]
        with (self._settings.out / "controller.log").open("ab") as log:
            return subprocess.Popen(
                [*command, "--port", str(self._settings.port + 1)], stdout=log, stderr=subprocess.STDOUT
            )

    async def _play(self, arm: str, *, names_classes: bool = True) -> Played:
        self._played += 1
        _say(f"\n{arm}   ({self._played} of {self._all})")
        await asyncio.sleep(SETTLES_S)
        return await play(self._system, "demo", self._trace, self._prompts, _say, names_classes=names_classes)


@contextmanager
def _system(settings: ControlBenchSettings) -> Iterator[tuple[System, str]]:
    """Run Redis, an engine and a gateway, without a controller."""
    command, redis_url = embedded_redis.server_command(settings.out / "redis")
    redis = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    port = settings.port
    arguments = ["--controllers", "0", "--redis-url", redis_url, "--state-dir", str(settings.out)]
    arguments += ["--port", str(port), "--admin-port", str(port + 1), "--engine-port", str(port + 2)]
    _say(f"starting a system; its output goes to {settings.out / 'up.log'}")
    with (settings.out / "up.log").open("wb") as output:
        own = start_own([*arguments, "--max-num-seqs", str(MAX_RUNNING)], output)
    try:
        gateway, admin, engine = (f"http://127.0.0.1:{port + offset}" for offset in range(3))
        wait_for(PROGRAM, f"{engine}/health", START_WITHIN_S)
        wait_for(PROGRAM, f"{gateway}/ready", START_WITHIN_S)
        yield System(gateway, admin, None, [engine]), redis_url
    finally:
        stop_own(own)
        redis.terminate()
        redis.wait(30.0)


def _say(text: str) -> None:
    sys.stdout.write(("\r\033[K" if sys.stdout.isatty() else "") + text + "\n")
    sys.stdout.flush()
