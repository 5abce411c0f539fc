"""One check of one machine: its settings, the lines and files of its outcomes, and the processes of its parts."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from specpilot.bench.gpu_engine.engine import prompt_texts

PASSED, FAILED, SKIPPED, MEASURED = "passed", "failed", "skipped", "measured"
NO_CUDA = "no CUDA device"
NO_ENGINE = "vLLM cannot run here: see the part `machine`"
LONGEST_REPLY = 1700
"""Most tokens of a reply, so that the demo's prompts fit beside it."""

_END_WITHIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Line:
    """A check's `name` and `verdict`; `text` has the figures, or the reason that it was skipped."""

    name: str
    verdict: str
    text: str

    def plain(self) -> dict[str, str]:
        """Return it as plain data."""
        return asdict(self)


def judged(name: str, text: str, *, is_right: bool) -> Line:
    """Return a line that passed if `is_right`."""
    return Line(name, PASSED if is_right else FAILED, text)


Outcome = tuple[list[Line], dict[str, Any]]


class PartError(Exception):
    """A part's process failed; the message describes it, and `report` is the last line that it printed, if any.

    `is_cut`: it exceeded its time.
    """

    def __init__(self, message: str, report: Mapping[str, Any] | None = None, *, is_cut: bool = False) -> None:
        super().__init__(message)
        self.report = report
        self.is_cut = is_cut


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the check; it is ended after `at_most_s` seconds.

    It begins only if `needs_s` seconds are left (`None`: `at_most_s`).
    """

    name: str
    at_most_s: float
    run: Callable[["Check"], Outcome]
    needs_s: float | None = None

    def fits(self, left_s: float) -> bool:
        """Return whether it may begin with `left_s` seconds left."""
        return left_s >= (self.at_most_s if self.needs_s is None else self.needs_s)


@dataclass(slots=True)
class Check:
    """The settings of a check, and the outcomes of its parts so far. `None` and empty lists: the machine's defaults."""

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
    rounds: int = 2
    profiled_steps: int = 4
    capture_size: int | None = None
    batch_invariant: str = "auto"
    timed_s: float | None = None
    limit_s: float = 0.0

    def settings(self) -> dict[str, Any]:
        """Return the settings that the figures depend on, as plain data."""
        names = (
            "model", "drafter", "prompts", "k_max", "ks", "running", "replies", "tokens", "steps", "rounds",
            "capture_size", "batch_invariant",
        )  # fmt: skip
        plain = {name: getattr(self, name) for name in names}
        return {name: str(value) if isinstance(value, Path) else value for name, value in plain.items()}

    def path(self, name: str) -> Path:
        """Return the file of a part's outcome."""
        return self.out / "parts" / f"{slug(name)}.json"

    def data(self, name: str) -> dict[str, Any]:
        """Return the data of an earlier part; empty when it has none."""
        path = self.path(name)
        return dict(json.loads(path.read_text(encoding="utf-8"))["data"]) if path.exists() else {}

    def outcome_of(self, part: Part, left_s: float) -> Outcome | None:
        """Run a part; when its process fails, the outcome is a failed line.

        `None` when the `left_s` seconds left of the call did not suffice: the next call runs it again.
        """
        limit_s = min(part.at_most_s, left_s)
        try:
            return part.run(replace(self, limit_s=limit_s))
        except PartError as error:
            if error.is_cut and limit_s < part.at_most_s:
                return None
            return [Line(part.name, FAILED, str(error))], {}

    @property
    def has_cuda(self) -> bool:
        """Whether the machine has a GPU that torch and vLLM use."""
        return bool(self.data("machine").get("device"))

    @property
    def has_engine(self) -> bool:
        """Whether the installed versions allow an engine with the adapter."""
        return not self.data("machine").get("unfit", True)

    def by_device(self, value: Any, on_gpu: Any, on_cpu: Any) -> Any:
        """Return `value`, else the one for this kind of machine."""
        return value or (on_gpu if self.has_cuda else on_cpu)

    @property
    def most_running(self) -> int:
        """The largest number of running requests."""
        return int(max(self.by_device(self.running, [128], [8])))

    def texts(self, count: int) -> list[str]:
        """Return `count` prompts, cycling through the classes."""
        return prompt_texts(self.prompts, count)

    def engine(
        self, kind: str, options: Mapping[str, Any], log: str, variables: Mapping[str, str] | None = None, **job: Any
    ) -> dict[str, Any]:
        """Run an engine's job in a process of its own; raises `PartError`."""
        environment = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_USE_V2_MODEL_RUNNER": "0"}
        if not self.has_cuda:
            environment |= {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"}
            environment |= {"VLLM_CPU_OMP_THREADS_BIND": str(max(os.sched_getaffinity(0)))}
        if kind == "waits":
            environment["VLLM_GPU_SYNC_CHECK"] = "warn"
        arguments = json.dumps({"kind": kind, "options": dict(options), **job})
        environment |= variables or {}
        return self.program("specpilot.bench.gpu_engine.worker", arguments, log=log, environment=environment)

    def program(
        self, module: str, *arguments: str, log: str, environment: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Run `module` as a program and return the JSON object of its last line; raises `PartError`."""
        path = self.out / "logs" / f"{slug(log)}.log"
        variables = os.environ | {"HF_HUB_OFFLINE": "1"} | dict(environment or {})
        command = [sys.executable, "-P", "-m", module, *arguments]
        with path.open("w+", encoding="utf-8") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env=variables, start_new_session=True
            )
            status: int | None = None
            try:
                status = process.wait(self.limit_s)
            except subprocess.TimeoutExpired:
                pass
            finally:
                _end_all(process)
            output.seek(0)
            lines = output.read().splitlines()
        json_line = next((line for line in reversed(lines) if line.startswith("{") and line.endswith("}")), None)
        document = None if json_line is None else dict(json.loads(json_line))
        if status is None:
            raise PartError(f"did not end within {self.limit_s:g} s; its log is {path}", document, is_cut=True)
        if status != 0 or document is None:
            raise PartError(f"ended with status {status}: {_last_words(lines)}; its log is {path}", document)
        return document

    def until(self) -> float:
        """Return the monotonic time after which a measuring job begins no further cell, so that it is not ended."""
        return time.monotonic() + max(0.0, 0.97 * self.limit_s - 5.0)


def _end_all(process: "subprocess.Popen[Any]") -> None:
    """End the process and all processes of its session, which it leads."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_WITHIN_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last_words(lines: Sequence[str]) -> str:
    errors = [line.strip() for line in lines if "Error" in line and not line.startswith("{")]
    return (errors or [line for line in lines if line.strip()] or ["it printed nothing"])[-1][-400:]


def slug(name: str) -> str:
    """Return a part's name as a file's."""
    return "-".join("".join(letter if letter.isalnum() else " " for letter in name.lower()).split())
