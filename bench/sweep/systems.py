"""The servers of a sweep: engines that it starts on this machine, or endpoints that run anywhere.

The sweep calls the engines without a gateway, so that arms differ in speculation alone; `specpilot bench gateway`
measures the gateway's cost. *No speculation* is vLLM without the adapter. The steered arms are vLLM with the adapter
and K set by `PUT /speculation`; *adaptive* is `specpilot up`, whose controller sets K.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from specpilot.bench.processes import end
from specpilot.bench.sweep.plan import ADAPTIVE, NO_SPECULATION, P_EAGLE, SYSTEMS
from specpilot.bench.sweep.steering import EndpointError, Steering
from specpilot.engine_adapter import head_config, number_format
from specpilot.engine_adapter.head_config import HeadConfig
from specpilot.engine_adapter.vllm import versions
from specpilot.policy.http_client import open_url
from specpilot.ports import check_port

START_WITHIN_S = 600.0
"""Longest start of an engine in seconds: large models load for minutes."""
STOP_WITHIN_S = 60.0
PORTS = 3
"""Ports reserved for each system: its engine's, and for `specpilot up` the gateway's and the admin API's."""


class SystemFailedError(RuntimeError):
    """An engine that did not start."""


@dataclass(frozen=True, slots=True)
class Engines:
    """The models and flags of started engines. `k_max` is the largest K of the sweep."""

    model: str
    heads: Mapping[str, str]
    k_max: int
    max_num_seqs: int
    engine_args: str
    folder: Path
    port: int

    @property
    def served_name(self) -> str:
        """The engines' name of their model."""
        return Path(self.model).name


@dataclass(slots=True)
class RunningSystem:
    """A server that answers at `url`; `is_warm`: it has answered the unmeasured requests of a warm-up."""

    url: str
    steering: Steering
    process: subprocess.Popen[bytes] | None = None
    is_warm: bool = False

    def stop(self) -> None:
        """End the processes that were started for it, and wait; an endpoint gets its K back."""
        if self.process is not None:
            end(self.process, within_s=STOP_WITHIN_S)
            return
        try:
            self.steering.give_back()
        except EndpointError as error:
            sys.stderr.write(f"the K that {self.url} had before was not put back: {error}\n")


class Systems:
    """Starts systems when they are first needed, and stops them. With `one_at_a_time` it stops the last one before.

    `control_token` is the endpoints'. Endpoints with one URL are one server, whose K an arm without a K gets back.
    """

    def __init__(
        self,
        engines: Engines,
        endpoints: Mapping[str, str],
        *,
        one_at_a_time: bool = False,
        control_token: str | None = None,
    ) -> None:
        self._engines = engines
        self._endpoints = endpoints
        self._one_at_a_time = one_at_a_time
        self._steerings = {url: Steering(url, control_token) for url in endpoints.values()}
        self._running: dict[str, RunningSystem] = {}

    def start(self, names: Sequence[str]) -> None:
        """Start engines together; raises `SystemFailedError` with the log of one that does not come up."""
        missing = [name for name in names if name not in self._running]
        for name in missing:
            url = self._endpoints.get(name)
            self._running[name] = self._launch(name) if url is None else RunningSystem(url, self._steerings[url])
        for name in missing:
            self._wait(name)

    def use(self, name: str) -> RunningSystem:
        """Return the system `name`, running."""
        if name not in self._running:
            if self._one_at_a_time:
                self.stop()
            self.start([name])
        return self._running[name]

    def stop(self) -> None:
        """Stop everything."""
        while self._running:
            _, system = self._running.popitem()
            system.stop()

    def _log(self, name: str) -> Path:
        return self._engines.folder / "logs" / f"{name}.log"

    def _launch(self, name: str) -> RunningSystem:
        port = self._engines.port + PORTS * SYSTEMS.index(name)
        if (fault := check_port("127.0.0.1", port)) is not None:
            raise SystemFailedError(f"the engine of {name!r} did not start: {fault} with --port")
        self._log(name).parent.mkdir(parents=True, exist_ok=True)
        with self._log(name).open("wb") as log:
            process = subprocess.Popen(
                command_of(self._engines, name, port, has_gpu=has_gpu()),
                env=os.environ | environment(has_gpu=has_gpu(), is_local=Path(self._engines.model).is_dir()),
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        url = f"http://127.0.0.1:{port}"
        return RunningSystem(url, Steering(url), process)

    def _wait(self, name: str) -> None:
        system = self._running[name]
        deadline = time.monotonic() + START_WITHIN_S
        while system.process is not None:
            with suppress(OSError, HTTPException), open_url(f"{system.url}/health", timeout=2.0):
                return
            if system.process.poll() is not None or time.monotonic() > deadline:
                raise SystemFailedError(f"the engine of {name!r} did not start; its output is in {self._log(name)}")
            time.sleep(0.3)


def has_gpu() -> bool:
    """Return whether vLLM runs on a GPU here."""
    return shutil.which("nvidia-smi") is not None


def environment(*, has_gpu: bool, is_local: bool) -> dict[str, str]:
    """Return the environment of an engine; on a CPU with cores of its own, like `specpilot up`.

    The engines listen on this machine alone, so they get no control token, even if the environment has one.
    """
    variables = {"SPECPILOT_ENGINE_CONTROL_TOKEN": ""} | ({"HF_HUB_OFFLINE": "1"} if is_local else {})
    if not has_gpu:
        cores = sorted(os.sched_getaffinity(0))
        engine_cores = cores[:-1] or cores
        variables |= {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(str(core) for core in engine_cores),
            "OMP_NUM_THREADS": str(len(engine_cores)),
        }
    return variables


def command_of(engines: Engines, name: str, port: int, *, has_gpu: bool) -> list[str]:
    """Return the command of one system; its engine listens on `port`."""
    shared = ["--no-enable-prefix-caching", *shlex.split(engines.engine_args)]
    on_cpu = [] if has_gpu else [
        *("--distributed-executor-backend", "uni", "--enforce-eager", "--max-model-len", "2048"),
        "--disable-uvicorn-access-log",
    ]  # fmt: skip
    served = ["--served-model-name", engines.served_name, "--max-num-seqs", str(engines.max_num_seqs)]
    if name == ADAPTIVE:
        return [
            *(sys.executable, "-P", "-m", "specpilot.cli", "up", "--model", engines.model, *served),
            *("--drafter", engines.heads[P_EAGLE], "--k-max", str(engines.k_max)),
            *("--engine-port", str(port), "--port", str(port + 1), "--admin-port", str(port + 2)),
            *("--state-dir", str(engines.folder / "adaptive"), f"--engine-args={shlex.join(shared)}"),
        ]
    engine = ["--model", engines.model, *served, "--host", "127.0.0.1", "--port", str(port), *on_cpu]
    engine += ["--dtype", number_format.fitting(engines.model), *shared]  # the user's own comes last, and counts
    if name == NO_SPECULATION:
        return [sys.executable, *versions.server_command(), *engine]
    head = HeadConfig(is_parallel=name == P_EAGLE, k=None)
    speculative = head_config.speculative_config(engines.heads[name], head, engines.k_max)
    return [
        *(sys.executable, "-P", "-m", "specpilot.cli", "engine", *engine),
        *("--calibrate-s", "0"),  # no controller reads it
        "--trust-this-machine",  # the sweep sets K
        *("--speculative-config", json.dumps(speculative)),
    ]
