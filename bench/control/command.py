"""`specpilot bench control`: the control law on a real engine, beside all alternatives that a user has without it.

Starts systems of its own. Arms, each playing the same unannounced trace, several times:

- `K=k`: every request verifies k draft tokens; K = 0 is no speculation;
- `table`: K by batch size, tuned on this trace from a separate play of the static arms: the best that a user would have
  if vLLM's dynamic speculation worked with P-EAGLE;
- `K by class`, with `--by-class json=7,code=0`: K set for each class from knowledge of the traffic, and every request
  names its class; classes that are not given have K = 0;
- `adaptive`: a fresh controller, and requests that name no class, like most real ones;
- `with labels`: the same, and every request names its class;
- `engine alone`: as `adaptive` without a controller .

The arms play each phase one after another, in a rotating order, because the speed of a shared machine changes by a
tenth or more for minutes: compared figures are measured within a minute, and the report corrects for the rest. Between
its phases an arm has no traffic, keeps its state and learns nothing. Each steered arm has an engine, a gateway, a Redis
and a controller of its own; the fixed arms share a system without a controller. One launch of an engine may be faster
than another by some 5 % for its whole life, at any K. So arms with equal engines change systems from play to play.

The report has a table, plots, and one JSON object as its last line. Beside it are the rates of every play
(`rates.json`, tokens per second by arm, play and phase).
"""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from specpilot.bench.chosen import chosen
from specpilot.bench.control import report
from specpilot.bench.control.uncontrolled_system import uncontrolled_system
from specpilot.bench.load.play import Played, Player
from specpilot.bench.load.system import System, wait_for
from specpilot.bench.load.trace import TRACES, Trace, read_prompts, read_trace
from specpilot.bench.process_end import end
from specpilot.bench.report.output import say
from specpilot.demo_model import DEMO_MODEL
from specpilot.policy.errors import InvalidDocumentError
from specpilot.policy.names import DEFAULT_CLASS
from specpilot.policy.settings import ProgramSettings, fail, load

PROGRAM = "specpilot bench control"
K_MAX = 7
"""Largest K of the engines that are started."""
MAX_RUNNING = 32
"""Requests that an engine runs at once (`--max-num-seqs`)."""
START_WITHIN_S = 300.0
"""Longest start of a system in seconds: several engines load at once."""
SETTLES_S = 0.5
"""Seconds without load between two arms, in which the requests in flight of the first one end."""
TUNING_STRETCH = 0.5
"""Length of the plays that tune the table, relative to the measured ones."""
PORTS = 10
"""Ports reserved for each system."""
FIXED = "fixed"
"""The system that the fixed arms share."""
OTHER_ARMS = (report.LABELLED, report.ALONE)
KEEP_SYSTEM = (report.ALONE,)
"""Arms that keep their system in every play: without a controller its engine stays as it has learned."""
T = TypeVar("T")
Rows = dict[str, list[list[int]]]
"""K by class: `[lo, hi, K]` over running decodes."""


class ControlBenchSettings(ProgramSettings):
    """Measure the controller on a real engine, beside static K and a table tuned by hand."""

    model_config = SettingsConfigDict(env_prefix="SPECPILOT_BENCH_CONTROL_")

    trace: Path = Field(default=TRACES / "control.json", description="phases to play")
    prompts: Path = Field(
        default=DEMO_MODEL / "prompts",
        description="folder with <class>.jsonl",
    )
    repeats: int = Field(default=3, ge=1, description="plays of each arm")
    static: str = Field(default="0,1,2,3,5,7", description="static K to compare with, comma separated")
    by_class: str = Field(
        default="", description="one more arm: K for each class, as json=7,code=0; its requests name their class"
    )
    arms: str = Field(default=report.LABELLED, description="further steered arms, comma separated; none for none")
    stretch: float = Field(default=1.0, gt=0, description="make every phase this many times as long")
    interval_s: float = Field(default=0.5, ge=0.1, le=5, description="seconds between two decisions of the controllers")
    out: Path = Field(default=Path(".specpilot/bench-control"), description="folder for report.md and plot.svg")
    port: int = Field(default=8480, ge=1, le=65000, description="first of the ports to use, ten for each system")


def main(arguments: Sequence[str]) -> None:
    """Run it; the last line is one JSON object."""
    settings = load(ControlBenchSettings, PROGRAM, arguments)
    try:
        trace = read_trace(settings.trace).stretched(settings.stretch)
        prompts = read_prompts(settings.prompts, trace.prompts)
        statics = sorted({int(item) for item in settings.static.split(",") if item})
    except InvalidDocumentError as error:
        fail(PROGRAM, f"--trace: {error}")
    except OSError as error:
        fail(PROGRAM, f"{error.filename}: {error.strerror}")
    except ValueError:
        statics = [-1]
    if any(not 0 <= k <= K_MAX for k in statics):
        fail(PROGRAM, f"--static: {settings.static!r} is not a list of numbers, 0 to {K_MAX}, like 0,3,7")
    others = [] if settings.arms == "none" else chosen(PROGRAM, "--arms", settings.arms, OTHER_ARMS)
    by_class = _by_class(settings.by_class)
    settings.out.mkdir(parents=True, exist_ok=True)
    fixed = {f"K={k}": {DEFAULT_CLASS: [[1, MAX_RUNNING, k]]} for k in statics}
    steered = [report.ADAPTIVE, *others]
    with ExitStack() as stack:
        systems = [
            stack.enter_context(_system(settings.out / arm.replace(" ", "-"), settings.port + PORTS * at))
            for at, arm in enumerate([FIXED, *steered])
        ]
        bench = _Bench(settings, trace, prompts, dict(zip([FIXED, *steered], systems, strict=True)))
        result, table = asyncio.run(bench.run(fixed, by_class))
    text = report.markdown(result, table)
    figures = json.dumps(report.summary(result))
    (settings.out / "report.md").write_text(f"{text}\n![plot](plot.svg)\n\n```json\n{figures}\n```\n")
    rates = {arm: [played.rates for played in plays] for arm, plays in result.plays.items()}
    (settings.out / "rates.json").write_text(json.dumps(rates, indent=1) + "\n")
    report.plot(result, settings.out / "plot.svg")
    say(f"\n{text}\nreport and plot: {settings.out}\n{figures}")


def _by_class(text: str) -> Rows:
    """Return the rows of `text` (`json=7,code=0`); ends the program when it is malformed."""
    if not text:
        return {}
    if not re.fullmatch(rf"([^,=\s]+=[0-{K_MAX}](,|$))+", text):
        fail(PROGRAM, f"--by-class: {text!r} is not a list of classes with their K, 0 to {K_MAX}, like json=7,code=0")
    depths = {name: int(k) for name, k in (item.split("=") for item in text.split(",") if item)}
    return {name: [[1, MAX_RUNNING, k]] for name, k in {DEFAULT_CLASS: 0, **depths}.items()}


@dataclass(frozen=True, slots=True)
class _Stage:
    """A running system; `folder` has its logs, `port` is its first."""

    system: System
    redis_url: str
    folder: Path
    port: int


class _Bench:
    """Plays the arms alternately."""

    def __init__(
        self,
        settings: ControlBenchSettings,
        trace: Trace,
        prompts: dict[str, Any],
        stages: dict[str, _Stage],
    ) -> None:
        self._settings = settings
        self._trace = trace
        self._prompts = prompts
        self._stages = stages  # one for all fixed arms, and one for each steered arm

    async def run(self, fixed: dict[str, Rows], by_class: Rows) -> tuple[report.Result, list[list[int]]]:
        """Return the result, and the table tuned by hand."""
        say("the static arms play once, for the table to be tuned")
        short = self._trace.stretched(TUNING_STRETCH)
        tuning = await self._take_turns(short, {arm: self._player(arm) for arm in fixed}, fixed, 0)
        rates = {int(arm[2:]): played.rates for arm, played in tuning.items()}
        table = report.hand_tuned(short, rates, MAX_RUNNING)
        rows = {**fixed, report.TABLE: {DEFAULT_CLASS: table}, **({report.BY_CLASS: by_class} if by_class else {})}
        steered = [arm for arm in self._stages if arm != FIXED]
        plays: dict[str, list[Played]] = {arm: [] for arm in [*rows, *steered]}
        for repetition in range(self._settings.repeats):
            say(f"\nplay {repetition + 1} of {self._settings.repeats}")
            self._stages = changed_round(self._stages) if repetition else self._stages
            with ExitStack() as stack:
                for arm in [arm for arm in steered if arm != report.ALONE]:
                    stack.enter_context(self._controller(arm, self._stages[arm]))
                played = await self._take_turns(
                    self._trace, {arm: self._player(arm) for arm in plays}, rows, repetition
                )
            for arm, item in played.items():
                plays[arm].append(item)
        return report.Result(self._trace, plays), table

    def _player(self, arm: str) -> Player:
        stage = self._stages.get(arm, self._stages[FIXED])
        return Player(stage.system, "demo", self._prompts, names_classes=arm in (report.LABELLED, report.BY_CLASS))

    async def _take_turns(
        self, trace: Trace, players: dict[str, Player], rows: dict[str, Rows], repetition: int
    ) -> dict[str, Played]:
        arms = list(players)
        for index, phase in enumerate(trace.phases):
            first = (index + repetition * len(arms) // self._settings.repeats) % len(arms)
            for arm in arms[first:] + arms[:first]:
                if arm in rows:
                    guidance = {"classes": _pinned(rows[arm], sum(phase.streams.values()))}
                    await asyncio.to_thread(self._stages[FIXED].system.put_speculation, {"guidance": guidance})
                say(await players[arm].phase(phase, f"{phase.name:<20}{arm}"[:44].ljust(44)))
                await players[arm].pause()
                await asyncio.sleep(SETTLES_S)
        return {arm: await player.close() for arm, player in players.items()}

    @contextmanager
    def _controller(self, arm: str, stage: _Stage) -> Iterator[None]:
        """Run a controller without any estimates."""
        command = [sys.executable, "-P", "-m", "specpilot.cli", "controller", "--trust-this-machine"]
        command += ["--redis-url", stage.redis_url, "--port", str(stage.port + 1)]
        command += ["--interval-s", str(self._settings.interval_s)]
        with (stage.folder / "controller.log").open("ab") as log:
            controller = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            wait_for(PROGRAM, f"{stage.system.admin_url}/health", 30.0)
            _check_alive(controller, arm, stage)
            yield
            _check_alive(controller, arm, stage)
        finally:
            end(controller)


def changed_round(stages: Mapping[str, T]) -> dict[str, T]:
    """Return `stages` with each arm on the next one's; an arm with an engine unlike theirs keeps its own."""
    alike = [arm for arm in stages if arm not in KEEP_SYSTEM]
    return {**stages, **{arm: stages[other] for arm, other in zip(alike, [*alike[1:], alike[0]], strict=True)}}


def _pinned(rows: Rows, running: int) -> dict[str, dict[str, int]]:
    """Return the requirements by class that pin the K of `rows` at so many running decodes."""
    k_of = {name: next((k for _, hi, k in row if running <= hi), row[-1][2]) for name, row in rows.items()}
    return {name: {"k_min": k, "k_max": k} for name, k in k_of.items()}


def _check_alive(controller: subprocess.Popen[bytes], arm: str, stage: _Stage) -> None:
    """End the bench if the controller of `arm` has ended: another program on its port may have answered instead."""
    if controller.poll() is not None:
        fail(PROGRAM, f"the controller of the arm `{arm}` has ended; {stage.folder / 'controller.log'} says why")


@contextmanager
def _system(folder: Path, port: int) -> Iterator[_Stage]:
    """Run Redis, an engine and a gateway, without a controller."""
    flags = ["--port", str(port), "--admin-port", str(port + 1), "--engine-port", str(port + 2)]
    flags += ["--k-max", str(K_MAX), "--max-num-seqs", str(MAX_RUNNING)]
    with uncontrolled_system(folder, flags) as system:
        gateway, admin, engine = (f"http://127.0.0.1:{port + offset}" for offset in range(3))
        wait_for(PROGRAM, f"{engine}/health", START_WITHIN_S, system.up)
        wait_for(PROGRAM, f"{gateway}/ready", START_WITHIN_S, system.up)
        yield _Stage(System(gateway, admin, None, [engine]), system.redis_url, folder, port)
