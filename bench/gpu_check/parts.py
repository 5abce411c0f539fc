"""vLLM's options for the engines of a check, and the parts that run none."""

from typing import Any

from specpilot.bench.gpu_check.check import MEASURED, NO_CUDA, SKIPPED, Check, Line, Outcome, judged
from specpilot.engine_adapter.head_config import HeadConfig, speculative_config

SCHEDULER = "specpilot.engine_adapter.vllm.scheduler.SpecPilot{}Scheduler"
LONGEST = 2048
"""Most positions of a request: the demo pair was trained for no more."""


def options_of(check: Check, **other: Any) -> dict[str, Any]:
    """Return the options of an engine without speculation."""
    options: dict[str, Any] = {
        "model": str(check.model),
        "max_num_seqs": check.most_running,
        "max_model_len": LONGEST,
        "enable_prefix_caching": False,
        "disable_log_stats": False,
        "seed": 0,
    }
    if check.has_cuda:
        options["gpu_memory_utilization"] = 0.6
    return options | other


def head_of(check: Check) -> dict[str, object]:
    """Return vLLM's `speculative_config` for the head at K_max."""
    return speculative_config(str(check.drafter), HeadConfig(is_parallel=True, k=None), check.k_max)


def steered(check: Check, *, is_async: bool, **other: Any) -> dict[str, Any]:
    """Return the options of an engine with the adapter."""
    return options_of(
        check,
        speculative_config=head_of(check),
        scheduler_cls=SCHEDULER.format("Async" if is_async else ""),
        async_scheduling=is_async,
        **other,
    )


def machine(check: Check) -> Outcome:
    """Report versions and devices."""
    report = check.program("specpilot.bench.gpu_check.machine", log="machine")
    fits = report["unfit"] is None
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items() if version)
    lines = [
        Line("device", MEASURED, report["device"] or f"{NO_CUDA}; CPU: {report['cpu']}"),
        Line("versions", MEASURED, versions),
        judged("the adapter fits this vLLM", report["unfit"] or f"vLLM {report['versions']['vllm']}", is_right=fits),
        judged(
            "what the adapter relies on in vLLM is as it was read",
            ", ".join(report["changed"]) or "each function",
            is_right=fits and not report["changed"],
        ),
    ]
    return lines, report


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
