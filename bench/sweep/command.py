"""`specpilot bench sweep`: the gain of speculation by K, load and text, and the further gain of adaptive K.

Measures every arm (no speculation, EAGLE-3 and P-EAGLE at each K, adaptive K) at every load with every data set,
several times, on engines that it starts, or on endpoints given by URL. The arms alternate cell by cell. The load of a
cell is `vllm bench serve`'s, and so are its figures: each cell is one of its files. After an interruption the same
command goes on where it stopped. The report is `report.md`.
"""

import math
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import split
from typing import Any

from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from specpilot.bench.chosen import chosen
from specpilot.bench.report.output import say
from specpilot.bench.sweep import pareto_picture, report
from specpilot.bench.sweep.client import Client, ClientFailedError, flags, is_installed
from specpilot.bench.sweep.plan import ADAPTIVE, EAGLE_3, P_EAGLE, STEPPED, SYSTEMS, Arm, Cell, Load, plan
from specpilot.bench.sweep.steering import EndpointError, RefusedError, Steering, model_of
from specpilot.bench.sweep.store import Store, cells_in
from specpilot.bench.sweep.systems import Engines, RunningSystem, SystemFailedError, Systems
from specpilot.bench.sweep.texts import BrokenDataError, DataSet, data_set
from specpilot.demo_model import DEMO_MODEL
from specpilot.policy.clean_text import is_address
from specpilot.policy.settings import ProgramSettings, fail, load

PROGRAM = "specpilot bench sweep"
WARM_UP = Load(concurrency=2)
"""Load of the warm-up before the first cell of a system: the first requests compile and fill caches."""
SETTLE_S = 5.0
"""Seconds of a cell's load before each cell of adaptive K: a cell does not measure what learning costs."""
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]*")


class SweepSettings(ProgramSettings):
    """Measure every arm at every load with every data set."""

    model_config = SettingsConfigDict(env_prefix="SPECPILOT_BENCH_SWEEP_")
    free_text = frozenset({"engine_args", "client_args"})

    arms: str = Field(default=",".join(SYSTEMS), description="systems to start, comma separated; none with --endpoints")
    endpoints: str = Field(default="", description="servers that run, as NAME=URL, comma separated, in place of --arms")
    k: str = Field(default="1,3,5,7", description="K of the EAGLE-3 and P-EAGLE arms, comma separated")
    data: str = Field(default="code,chat,json", description="data sets, comma separated: NAME, PATH.jsonl or NAME=PATH")
    concurrency: str = Field(default="1,4,8,32", description="requests in flight, comma separated")
    request_rate: str = Field(default="", description="requests a second (open loop), in place of --concurrency")
    repetitions: int = Field(default=3, ge=1, description="measurements of each cell")
    num_prompts: int = Field(default=12, ge=1, description="requests of a cell, at least")
    output_tokens: int = Field(default=96, ge=2, description="tokens of a reply, in the mean")
    ignore_eos: bool = Field(default=True, description="give replies their full length (vLLM and SGLang)")
    goodput: str = Field(default="", description="SLOs in ms, as ttft:500,tpot:50,e2el:5000")
    goal_ms: float | None = Field(
        default=None, gt=0, description="one more arm of the endpoint `adaptive`: with this goal on mean TPOT, in ms"
    )
    client_args: str = Field(default="", description="further flags for vllm bench serve, in one string")
    tokenizer: str | None = Field(
        default=None, description="tokenizer of the client's own data sets; default: --model, or the endpoints' model"
    )
    model: str = Field(default=str(DEMO_MODEL / "target"), description="target of the engines that are started")
    p_eagle: str = Field(default=str(DEMO_MODEL / "peagle"), description="P-EAGLE head: a folder or a name")
    eagle3: str = Field(default=str(DEMO_MODEL / "eagle3"), description="EAGLE-3 head: a folder or a name")
    engine_args: str = Field(default="", description="further flags for every vLLM, in one string")
    max_num_seqs: int = Field(default=32, ge=1, description="largest number of running requests per engine")
    one_at_a_time: bool = Field(default=False, description="run one engine at a time, where they do not fit together")
    served_model: str | None = Field(default=None, description="model to ask endpoints for; default: their first")
    control_token: SecretStr | None = Field(default=None, description="token of the endpoints' /speculation, to set K")
    port: int = Field(default=8600, ge=1, le=65000, description="first of the ports of the engines")
    out: Path = Field(default=Path(".specpilot/bench-sweep"), description="folder for the cells and the report")
    report_only: bool = Field(default=False, description="measure nothing; write the report of the cells in --out")


@dataclass(frozen=True, slots=True)
class Question:
    """The measurement that the settings define."""

    arms: Sequence[Arm]
    endpoints: Mapping[str, str]
    data_sets: Mapping[str, DataSet]
    loads: Sequence[Load]
    goodput: Sequence[str]
    engines: Engines
    control_token: str | None


def main(arguments: Sequence[str], kind: type[SweepSettings] = SweepSettings, program: str = PROGRAM) -> None:
    """Run it. Exit status 1 when a server failed; the measured cells are kept, with a report of them.

    `kind` has the defaults, `program` is the command's name in its help.
    """
    settings = load(kind, program, arguments)
    failure = None if settings.report_only else _measure_all(settings, _question(settings))
    cells = cells_in(settings.out)
    if settings.report_only and not cells:
        fail(PROGRAM, f"--out: no cell was measured into {settings.out}")
    if cells:
        text = report.markdown(cells)
        (settings.out / "report.md").write_text(text)
        if (picture := pareto_picture.picture(cells)) is not None:
            (settings.out / "pareto.svg").write_text(picture)
        say(f"{text}\nreport: {settings.out / 'report.md'}")
    if failure is not None:
        sys.stderr.write(f"{PROGRAM}: {failure}\n")
        sys.exit(1)


def _measure_all(settings: SweepSettings, question: Question) -> str | None:
    """Measure the missing cells; return the reason of an early end, if any."""
    store = Store(PROGRAM, settings.out, _what_a_cell_is(settings, question))
    cells = plan(
        question.arms, [*question.data_sets], question.loads, settings.repetitions, one_at_a_time=settings.one_at_a_time
    )
    missing = [cell for cell in cells if not store.has(cell)]
    if len(missing) < len(cells):
        say(f"{len(cells) - len(missing)} of {len(cells)} cells were measured before")
    if not missing:
        return None
    token = question.control_token
    systems = Systems(question.engines, question.endpoints, one_at_a_time=settings.one_at_a_time, control_token=token)
    remedy = f"cells measured so far are kept in {store.folder}: the same command goes on from there"
    place = ""
    bench = _Bench(settings, question, Client(settings.out / "client.log"))
    try:
        if not settings.one_at_a_time:
            systems.start(list(dict.fromkeys(cell.arm.system for cell in missing)))
        began = time.monotonic()
        for number, cell in enumerate(missing, start=1):
            place = f"cell {cell.name}: "
            figures = bench.measure(systems.use(cell.arm.system), cell)
            store.put(cell, figures)
            left_s = (time.monotonic() - began) / number * (len(missing) - number)
            say(f"[{number}/{len(missing)}] {_line(cell, figures)}; {left_s / 60:.0f} min left")
    except (ClientFailedError, EndpointError, SystemFailedError) as error:
        return f"{place}{error}; {remedy}"
    except KeyboardInterrupt:
        return f"interrupted; {remedy}"
    finally:
        bench.client.close()
        systems.stop()
    return None


@dataclass(frozen=True, slots=True)
class _Bench:
    """Measures cells with one client."""

    settings: SweepSettings
    question: Question
    client: Client

    def measure(self, system: RunningSystem, cell: Cell) -> dict[str, Any]:
        """Return the figures of one cell.

        Raises `EndpointError` when the server had another K than the cell's arm, and `ClientFailedError`.
        """
        system.steering.set_k(cell.arm.k, cell.arm.goal_ms)
        if not system.is_warm:
            self._play(system, cell._replace(load=WARM_UP))
            system.is_warm = True
        ends_at, is_settled = time.monotonic() + SETTLE_S, cell.arm.system != ADAPTIVE
        while not is_settled:
            self._play(system, cell)
            is_settled = time.monotonic() >= ends_at
        figures = self._play(system, cell)
        system.steering.check(cell.arm.k, cell.arm.goal_ms)
        return figures

    def _play(self, system: RunningSystem, cell: Cell) -> dict[str, Any]:
        """Play the load of a cell; each repetition goes on to the next prompts of the data set."""
        settings, data = self.settings, self.question.data_sets[cell.data_set]
        count, model = cell.load.requests(settings.num_prompts), settings.served_model or model_of(system.url)
        words = flags(system.url, model, cell.load, count, ignore_eos=settings.ignore_eos)
        if self.question.goodput:
            words += ["--goodput", *self.question.goodput]
        prompts = []
        if data.prompts:
            prompts = data.requests(count, (cell.repetition - 1) * count, settings.output_tokens)
        else:
            tokenizer = settings.tokenizer or (model if self.question.endpoints else settings.model)
            words += [*data.flags, "--tokenizer", tokenizer, "--seed", str(cell.repetition)]
            words += ["--output-len", str(settings.output_tokens)]
        return self.client.run([*words, *split(settings.client_args)], prompts)


def _line(cell: Cell, figures: Mapping[str, Any]) -> str:
    length = figures.get("spec_decode_acceptance_length")
    accepted = f", acceptance length {length:.2f}" if length is not None else ""
    failed = f", {figures['failed']} failed" if figures["failed"] else ""
    where = f"{cell.arm.name:<14} {cell.data_set:<12} {cell.load.name:<5} #{cell.repetition}"
    return f"{where} {figures['output_throughput']:8.0f} tok/s{accepted}{failed}"


def _question(settings: SweepSettings) -> Question:  # noqa: C901 - one check after the other
    """Return the measurement; checks each endpoint. Ends the program when a setting or an endpoint is wrong."""
    if not is_installed():
        fail(PROGRAM, "vLLM, whose bench serve drives the load, is not installed here: install specpilot[engine]")
    endpoints = _endpoints(settings.endpoints)
    ks = _numbers("--k", settings.k, least=0)
    loads = _loads(settings)
    goodput = _goodput(settings.goodput)
    try:
        sets = {item.name: item for item in map(data_set, filter(None, settings.data.split(",")))}
    except BrokenDataError as error:
        fail(PROGRAM, f"--data: {error}")
    names = list(endpoints) if endpoints else chosen(PROGRAM, "--arms", settings.arms, SYSTEMS)
    if not names or not sets:
        fail(PROGRAM, f"{'--arms' if sets else '--data'}: names none")
    if not endpoints:
        _check_models(settings, names)
        most = max(item.concurrency or 0 for item in loads)
        if most > settings.max_num_seqs:
            sys.stderr.write(
                f"{PROGRAM}: --concurrency {most} is above --max-num-seqs {settings.max_num_seqs}: queues\n"
            )
    token = settings.control_token.get_secret_value() if settings.control_token is not None else None
    arms: list[Arm] = []
    for name in names:
        if (url := endpoints.get(name)) is not None and settings.served_model is None:
            try:
                model_of(url)
            except EndpointError as error:
                fail(PROGRAM, f"--endpoints: {name}: {error}")
        is_stepped = name in STEPPED and (url is None or _can_set_k(name, Steering(url, token)))
        arms += [Arm(name, k) for k in ks] if is_stepped else [Arm(name)]
    if settings.goal_ms is not None:
        if (url := endpoints.get(ADAPTIVE)) is None or not _can_set_k(ADAPTIVE, Steering(url, token)):
            fail(PROGRAM, "--goal-ms: needs an endpoint named adaptive: an engine of SpecPilot's without a controller")
        arms.append(Arm(ADAPTIVE, goal_ms=settings.goal_ms))
    heads = {P_EAGLE: settings.p_eagle, EAGLE_3: settings.eagle3}
    engines = Engines(
        settings.model, heads, max(*ks, 1), settings.max_num_seqs, settings.engine_args, settings.out, settings.port
    )
    return Question(arms, endpoints, sets, loads, goodput, engines, token)


def _what_a_cell_is(settings: SweepSettings, question: Question) -> dict[str, Any]:
    """Return the settings that all cells of a folder must share."""
    names = {"engine_args", "client_args", "num_prompts", "output_tokens", "ignore_eos", "goodput", "served_model"}
    started = {"model", "p_eagle", "eagle3", "max_num_seqs"}
    values = settings.model_dump(include=names if question.endpoints else names | started)
    values |= {f"data {item.name}": item.digest for item in question.data_sets.values()}
    if question.endpoints:
        return values | {f"endpoint {name}": url for name, url in question.endpoints.items()}
    return values | {"largest k": question.engines.k_max}  # of an engine's buffers and graphs


def _numbers(flag: str, text: str, least: int) -> list[int]:
    """Return the whole numbers of a setting, each at least `least`, without duplicates."""
    try:
        values = list(dict.fromkeys(int(item) for item in text.split(",") if item))
    except ValueError:
        fail(PROGRAM, f"{flag}: {text!r} is not a list of numbers like 1,3,7")
    if not values or min(values) < least:
        fail(PROGRAM, f"{flag}: {text!r} must have at least one number, each at least {least}")
    return values


def _loads(settings: SweepSettings) -> list[Load]:
    if not settings.request_rate:
        return [Load(concurrency=item) for item in _numbers("--concurrency", settings.concurrency, least=1)]
    try:
        rates = [float(item) for item in settings.request_rate.split(",") if item]
    except ValueError:
        rates = []
    if not rates or not all(0 < rate < math.inf for rate in rates):
        fail(PROGRAM, f"--request-rate: {settings.request_rate!r} is not a list of finite rates above 0, like 0.5,2")
    return [Load(request_rate=rate) for rate in rates]


def _goodput(text: str) -> list[str]:
    items = [item for item in text.split(",") if item]
    for item in items:
        if not re.fullmatch(r"(ttft|tpot|e2el):\d+(\.\d+)?", item):
            fail(PROGRAM, f"--goodput: {item!r} is not ttft, tpot or e2el and milliseconds, as ttft:500")
    return items


def _endpoints(text: str) -> dict[str, str]:
    urls: dict[str, str] = {}
    for number, item in enumerate(filter(None, text.split(",")), 1):
        name, _, url = item.partition("=")
        if not _NAME.fullmatch(name) or not is_address(url):
            fail(PROGRAM, f"--endpoints: item {number} is not NAME=URL, as none=http://127.0.0.1:8000")
        if name in urls:
            fail(PROGRAM, f"--endpoints: {name} is named twice")
        urls[name] = url.rstrip("/").removesuffix("/v1")
    return urls


def _can_set_k(name: str, steering: Steering) -> bool:
    """Return whether K of an endpoint can be set; prints why not, and ends the program if only the token is wrong."""
    try:
        steering.state()
    except RefusedError as error:
        remedy = "or name the endpoint otherwise to measure it at the K that it has"
        fail(PROGRAM, f"--endpoints: {name}: {error}, {remedy}")
    except EndpointError as error:
        sys.stderr.write(f"{PROGRAM}: {name} is measured at the K that it has, --k is not for it: {error}\n")
        return False
    return True


def _check_models(settings: SweepSettings, names: Sequence[str]) -> None:
    """End the program when a needed path holds no model."""
    needed = [("--model", settings.model)]
    needed += [("--eagle3", settings.eagle3)] if EAGLE_3 in names else []
    needed += [("--p-eagle", settings.p_eagle)] if {P_EAGLE, ADAPTIVE} & {*names} else []
    for flag, name in needed:
        if name.startswith(("/", ".", "~")) and not (Path(name).expanduser() / "config.json").is_file():
            fail(PROGRAM, f"{flag}: no model in {name} (there is no config.json); name a model folder")
