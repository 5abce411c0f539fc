"""A stock vLLM server of the demo pair's target: no plugin of SpecPilot's, vLLM's own scheduler."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from specpilot.bench.process_end import end
from specpilot.bench.sweep.endpoint import EndpointError, check_health
from specpilot.bench.sweep.plan import EAGLE_3
from specpilot.bench.sweep.systems import (
    START_WITHIN_S,
    STOP_WITHIN_S,
    SystemFailedError,
    environment,
    has_gpu,
    speculative_config,
)
from specpilot.demo_model import DEMO_MODEL
from specpilot.engine_adapter import number_format
from specpilot.engine_adapter.vllm import versions

MODEL = "demo"


@contextmanager
def stock_server(folder: Path, port: int, k: int = 0) -> Iterator[str]:
    """Run the server while the block runs, and yield its URL; with `k` above 0 it drafts with the EAGLE-3 head.

    Its output is in `folder`. Raises `SystemFailedError` when it does not start.
    """
    url, log_path = f"http://127.0.0.1:{port}", folder / "vllm.log"
    variables = environment(has_gpu=has_gpu(), is_local=True) | versions.server_environment(speculates=k > 0)
    with log_path.open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, *versions.server_command(), *_flags(port, k)],
            env=os.environ | variables | {"VLLM_PLUGINS": ""},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            _wait(url, server, log_path)
            yield url
        finally:
            end(server, within_s=STOP_WITHIN_S)


def _flags(port: int, k: int) -> list[str]:
    """Return vLLM's flags; every run reads the same prompts, so there is no prefix cache."""
    flags = ["--model", str(DEMO_MODEL / "target"), "--served-model-name", MODEL, "--no-enable-prefix-caching"]
    flags += ["--host", "127.0.0.1", "--port", str(port), "--max-num-seqs", "32", "--max-model-len", "2048"]
    flags += [] if has_gpu() else ["--distributed-executor-backend", "uni", "--enforce-eager"]
    if k:
        flags += ["--speculative-config", speculative_config(EAGLE_3, str(DEMO_MODEL / "eagle3"), k)]
    return [*flags, *number_format.flags(str(DEMO_MODEL / "target"), ()), "--disable-uvicorn-access-log"]


def _wait(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_WITHIN_S
    while True:
        with suppress(EndpointError):
            check_health(url)
            return
        if server.poll() is not None or time.monotonic() > deadline:
            raise SystemFailedError(f"vLLM did not start; its output is in {log}")
        time.sleep(0.3)
