"""A program of this folder that runs a real engine of the demo pair in its own process; how a test runs and reads it.

The program calls `start` and, with what it found, `finish`. The test calls `run`, in whose environment the engine core
runs in the program's process with one thread: no two that wait for each other on a busy machine.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from specpilot.engine_adapter import plugin_names
from specpilot.policy.bands import BANDS
from tests.support import dspark_head
from tests.support.k_tables import table
from tests.support.stack import DEMO_MODEL, ROOT

TARGET = str(DEMO_MODEL / "target")
MTP_TARGET = str(DEMO_MODEL / "mtp")
"""The same target, loaded as a MiMo model with an MTP layer."""
_made: list[str] = []
"""Folders of heads that this process wrote."""
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else tensor-parallel workers each want a NUMA node
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}


def ended(program: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `tests.support.<program>` to its end; `variables` are added to its environment."""
    command, environment = [sys.executable, "-m", f"tests.support.{program}", *arguments], ENVIRONMENT | variables
    return subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False)


def run(program: str, *arguments: str, **variables: str) -> dict[str, Any]:
    """Run `tests.support.<program>`; return what it found."""
    done = ended(program, *arguments, **variables)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, done.stdout[-2000:] + done.stderr[-3000:]
    return dict(json.loads(lines[-1]))


def head(name: str, k_max: int = 7, **more: Any) -> dict[str, Any]:
    """Return vLLM's `speculative_config` for the demo model's `peagle`, `eagle3`, `mtp` or `dflash`.

    `dspark` and `dspark from anchor` are made of the DFlash head (`tests.support.dspark_head`).
    """
    if name == "mtp":
        return {"method": "mtp", "num_speculative_tokens": k_max} | more
    if name.startswith("dspark"):
        _made.append(mkdtemp())
        model = dspark_head.written(Path(_made[-1]), sample_from_anchor=name.endswith("anchor"))
        return {"method": "dspark", "model": str(model), "num_speculative_tokens": k_max} | more
    if name == "dflash":
        return {"method": name, "model": str(DEMO_MODEL / name), "num_speculative_tokens": k_max} | more
    model, is_parallel = str(DEMO_MODEL / name), name == "peagle"
    given = {"method": "eagle3", "model": model, "num_speculative_tokens": k_max, "parallel_drafting": is_parallel}
    return given | more


def start(speculative: Mapping[str, Any] | None, *, is_async: bool = False, **options: Any) -> Any:
    """Return vLLM's `LLM` of the demo target in this process; with the adapter if it is `speculative`.

    It runs in float32 and eagerly unless the `options` say otherwise.
    """
    from vllm import LLM  # noqa: PLC0415 - tests import this module, and vLLM takes seconds

    given: dict[str, Any] = {"dtype": "float32", "enforce_eager": True, "async_scheduling": is_async}
    if is_async:
        _make_asynchronous()
    if "speculative_config" not in options:  # an engine without speculation has the adapter's repairs
        plugin_names.switch_on()
    if speculative is not None:
        given["speculative_config"] = dict(speculative)
    has_mtp = speculative is not None and speculative["method"] == "mtp"
    return LLM(**{"model": MTP_TARGET if has_mtp else TARGET} | given | options)


def _make_asynchronous() -> None:
    """Let vLLM schedule asynchronously in this process, and treat its tensors as an accelerator's."""
    from vllm.platforms.cpu import CpuPlatform  # noqa: PLC0415 - as above

    from specpilot.engine_adapter.vllm.v1 import backlog  # noqa: PLC0415 - as above
    from tests.support import memory_apart  # noqa: PLC0415 - as above

    memory_apart.install()
    backlog.states_stay = lambda *_: False
    update = CpuPlatform.check_and_update_config.__func__

    def keep_asynchronous(cls: Any, vllm_config: Any) -> None:
        update(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = True

    CpuPlatform.check_and_update_config = classmethod(keep_asynchronous)


def replies(
    engine: Any,
    before_step: Callable[[int], object] = lambda _: None,
    at_end: Callable[[Any], object] = lambda _: None,
) -> dict[str, list[int]]:
    """Step `engine` until no request is left; return the token ids of each reply. The first step is number 1.

    `at_end` gets vLLM's output of each request that ends.
    """
    found: dict[str, list[int]] = {}
    step = 0
    while engine.has_unfinished_requests():
        step += 1
        before_step(step)
        for output in engine.step():
            if output.finished:
                at_end(output)
                found[output.request_id] = list(output.outputs[0].token_ids)
    return found


def offer(control: Any, k: Mapping[str, int], probe_ratio: float = 0.0) -> None:
    """Put K in force for each class (`code`), or for a band of a class (`code:7`); a class with bands is probed."""
    names = {name.partition(":")[0] for name in k}
    by_band = {name: [k.get(f"{name}:{band}", k[name]) for band in range(BANDS)] for name in names}
    has_bands = {name.partition(":")[0] for name in k if ":" in name}
    in_force = table(probe_ratio, **{name: by_band[name] if name in has_bands else k[name] for name in names})
    control.table = lambda _: in_force


def finish(report: Mapping[str, Any]) -> None:
    """Print the `report`, and end the process at once: vLLM's own teardown expects a GPU's."""
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()
    for folder in _made:
        shutil.rmtree(folder)
    os._exit(0)
