"""The programs that `specpilot up` runs: their commands, environments, cores and tests of readiness.

On a machine without a GPU each engine is bound to cores of its own and the other programs to the last core, or as many
as the gateway has workers: an engine's OpenMP threads spin, and any other busy process on their cores would make its
steps many times longer. With GPUs several engines get a share of them each, are bound to no cores, and the other
programs have all cores but those that the engines need.

Secrets (tokens, the password in a Redis URL) are passed to the parts in their environment, because every user of a
machine can read the arguments of its processes.
"""

import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from urllib.request import Request

from specpilot import gpus
from specpilot.policy.clean_text import stripped
from specpilot.policy.errors import PolicyError
from specpilot.policy.http_client import open_url
from specpilot.policy.store import Store
from specpilot.supervisor import Part
from specpilot.up_settings import UpSettings

CORES_OF_ENGINE = 2
"""Of an engine on GPUs: its API server and its scheduler, which are busy while it serves."""
CORES_OF_GPU = 1
"""Its worker, which launches kernels."""
GATEWAY_STOP_S = 35.0  # it lets requests in flight finish, 30 s at most


def engines(settings: UpSettings, redis_url: str) -> list[Part]:
    """Return the engines, each with its share of the GPUs or with cores of its own."""
    has_gpu = shutil.which("nvidia-smi") is not None
    engine_cores, _ = _cores(settings)
    has_own_config = "--speculative-config" in settings.engine_args
    devices = gpus.visible(os.environ) if has_gpu and settings.engines > 1 else []
    parts = []
    for index in range(settings.engines):
        port = settings.engine_port + index
        environment = _redis_for("ENGINE", redis_url)
        if Path(settings.model).is_dir():
            environment["HF_HUB_OFFLINE"] = "1"
        if devices:
            environment[gpus.VISIBLE] = ",".join(gpus.share(devices, settings.engines, index))
        extra: list[str] = []
        if not has_gpu:
            cores = engine_cores[index :: settings.engines] or engine_cores
            # vLLM's worker then runs in the engine's own process, which it allows on a CPU only with that variable at 0
            # (the engine keeps a process of its own all the same). Otherwise the engine waits for its worker in a busy
            # loop, on the core that gateway, controller and API server need.
            environment |= {
                "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "VLLM_CPU_OMP_THREADS_BIND": ",".join(str(core) for core in cores),
                "OMP_NUM_THREADS": str(len(cores)),
            }
            extra = [
                "--distributed-executor-backend",
                "uni",
                "--enforce-eager",
                "--max-model-len",
                "2048",
                "--disable-uvicorn-access-log",
            ]
        command = [
            *(sys.executable, "-P", "-m", "specpilot.cli", "engine"),
            *("--model", settings.model),
            *(() if has_own_config else ("--drafter", settings.drafter, "--k-max", str(settings.k_max))),
            *("--served-model-name", settings.served_model_name, "--max-num-seqs", str(settings.max_num_seqs)),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--drain-grace-s", "0"),  # the gateway has stopped by then
            "--trust-this-machine",  # K by hand; a control token in the environment goes before it
            *(("--static-k", str(settings.k)) if settings.k is not None else ()),
            *extra,
            *shlex.split(settings.engine_args),
        ]
        parts.append(Part(f"engine-{index}", command, answers(f"http://127.0.0.1:{port}/health"), environment))
    return parts


def servers(settings: UpSettings, redis_url: str) -> list[Part]:
    """Return the controllers and the gateway."""
    has_gpu = shutil.which("nvidia-smi") is not None
    _, server_cores = _cores(settings, max(1, len(gpus.visible(os.environ))) if has_gpu else 0)
    specpilot = (sys.executable, "-P", "-m", "specpilot.cli")
    public = ("--public-paths", settings.public_paths) if settings.public_paths else ()
    way_in = () if settings.admin_token else ("--trust-this-machine",)
    admin_ports = [settings.admin_port + index for index in range(settings.controllers)]
    return [
        *(
            Part(
                "controller" if port == settings.admin_port else f"controller-{port}",
                [*specpilot, "controller", *way_in, "--host", settings.admin_host, "--port", str(port)],
                answers(f"http://{reachable(settings.admin_host)}:{port}/health"),
                _redis_for("CONTROLLER", redis_url) | _token_for("CONTROLLER", settings),
                cores=frozenset(server_cores),
            )
            for port in admin_ports
        ),
        Part(
            "gateway",
            [
                *(*specpilot, "gateway", "--host", settings.host, "--port", str(settings.port)),
                *("--workers", str(settings.workers), *public),
            ],
            answers(f"http://{reachable(settings.host)}:{settings.port}/ready"),
            {"REDIS_URL": redis_url} | _token_for("GATEWAY", settings),
            cores=frozenset(server_cores),
            stop_s=GATEWAY_STOP_S,
        ),
    ]


def _redis_for(program: str, url: str) -> dict[str, str]:
    """Return the variables that name Redis to `program`, which reads one of its own before the common one."""
    return {"REDIS_URL": url, f"SPECPILOT_{program}_REDIS_URL": url}


def _token_for(program: str, settings: UpSettings) -> dict[str, str]:
    token = settings.admin_token
    return {f"SPECPILOT_{program}_ADMIN_TOKEN": token.get_secret_value()} if token else {}


def _cores(settings: UpSettings, gpu_count: int = 0) -> tuple[list[int], list[int]]:
    """Return the cores of the engines and those of the other programs; a single core is shared by all.

    With GPUs an engine needs a few cores and no more, so the other programs have the rest.
    """
    cores = sorted(os.sched_getaffinity(0))
    count = max(1, min(settings.workers, len(cores) - 1))
    if gpu_count:
        needed = CORES_OF_ENGINE * settings.engines + CORES_OF_GPU * max(gpu_count, settings.engines)
        count = max(count, len(cores) - needed)
    return cores[:-count] or cores, cores[-count:]


def answers(url: str) -> Callable[[], bool]:
    """Return a test whether the server at `url` answers well."""

    def is_ready() -> bool:
        try:
            if url.startswith("unix:"):
                Store(url).ping()
            else:
                with open_url(url, timeout=1.0, is_own=True):
                    pass
        except (OSError, PolicyError):
            return False
        return True

    return is_ready


def engine_urls(settings: UpSettings) -> list[str]:
    """Return the addresses of the engines."""
    return [f"http://127.0.0.1:{settings.engine_port + index}" for index in range(settings.engines)]


def engine_notes(settings: UpSettings) -> list[str]:
    """Return what the started engines report about their start; nothing of an engine that does not answer."""
    token = stripped(os.environ.get("SPECPILOT_ENGINE_CONTROL_TOKEN", ""))
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    notes = []
    for index, url in enumerate(engine_urls(settings)):
        request = Request(f"{url}/speculation", headers=headers)  # noqa: S310 - an address of our own
        with suppress(OSError, HTTPException, ValueError), open_url(request, timeout=5.0, is_own=True) as reply:
            state = json.load(reply)
            ranks = state.get("ranks", [state])
            notes += [f"engine-{index}: {note}" for rank in ranks for note in rank.get("notes", [])]
    return notes


def reachable(host: str) -> str:
    """Return the address on this machine of a server that listens on `host`."""
    loopback = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound
    return f"[{loopback}]" if ":" in loopback else loopback
