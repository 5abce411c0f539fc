"""`specpilot up`: the whole loop on one machine, on embedded defaults.

Starts Redis, the engines, the controller and the gateway under one supervisor, shows progress, says where everything
is, and then shows one live line. On a machine without a GPU each engine is bound to cores of its own and the other
programs to the last core, or as many as the gateway has workers: an engine's OpenMP threads spin, and any other busy
process on their cores would make its steps many times longer.
"""

import os
import shlex
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Literal
from urllib.request import urlopen

from pydantic import AliasChoices, Field
from pydantic_settings import SettingsConfigDict

from policy.clock import SystemClock
from policy.errors import InvalidDocumentError, PolicyError
from policy.redis_store import RedisStore
from policy.settings import ProgramSettings, fail, load
from policy.types import ClassPolicy, Mode, Policy
from specpilot import embedded_redis
from specpilot.ports import check_port
from specpilot.status_line import StatusLine
from specpilot.supervisor import Part, PartFailedError, Supervisor

PROGRAM = "specpilot up"
DEMO_MODEL = Path(__file__).resolve().parent.parent / "deploy" / "demo_model"
DEMO_CLASSES = ("chat", "code", "json")
READY_WITHIN_S = 280.0


class UpSettings(ProgramSettings):
    """Run Redis, engine, controller and gateway on this machine until Ctrl-C."""

    model_config = SettingsConfigDict(env_prefix="SPECPILOT_UP_")

    mode: Literal["off", "advise", "act"] = Field(
        default="act", description="off: static K; advise: decide, but publish static K; act"
    )
    k: int | None = Field(default=None, ge=0, le=64, description="static K: with --mode off, and as fall-back")
    engines: int = Field(default=1, ge=1, le=16, description="how many engines")
    controllers: int = Field(
        default=1,
        ge=0,
        le=4,
        description="how many controllers: 0 to steer through /speculation, 2 to have one stand by",
    )
    host: str = Field(default="127.0.0.1", description="address that gateway and admin API listen on")
    port: int = Field(default=8080, ge=1, le=65535, description="gateway's port")
    workers: int = Field(default=1, ge=1, le=64, description="gateway's processes, which share the port")
    admin_port: int = Field(default=8081, ge=1, le=65535, description="first controller's port")
    engine_port: int = Field(default=8100, ge=1, le=65535, description="first engine's port")
    model: str = Field(default=str(DEMO_MODEL / "target"), description="target model: a folder or a name")
    drafter: str = Field(default=str(DEMO_MODEL / "peagle"), description="P-EAGLE head: a folder or a name")
    served_model_name: str = Field(default="demo", description="name that clients ask for")
    k_max: int = Field(default=7, ge=1, le=64, description="largest K")
    max_num_seqs: int = Field(default=32, ge=1, description="largest number of running requests per engine")
    engine_args: str = Field(default="", description="further flags for vLLM, in one string")
    admin_token: str | None = Field(default=None, description="bearer token of the admin API")
    redis_url: str | None = Field(
        default=None,
        validation_alias=AliasChoices("redis_url", "REDIS_URL"),
        description="use this Redis instead of the embedded one",
    )
    state_dir: Path = Field(default=Path(".specpilot"), description="logs and embedded data")


def main(arguments: Sequence[str]) -> None:
    """Run until Ctrl-C or SIGTERM; exit status 0 then, 1 when a part could not start, 2 on wrong settings."""
    settings = load(UpSettings, PROGRAM, arguments)
    _check(settings)
    stop = threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            sys.exit(130)
        stop.set()

    signal.signal(signal.SIGINT, on_signal)
    signal.signal(signal.SIGTERM, on_signal)
    try:
        supervisor = Supervisor(settings.state_dir / "logs", _say)
    except OSError as error:
        said = f"cannot make {error.filename}: {error.strerror}; name a folder that can be written"
        fail(PROGRAM, f"--state-dir: {said}")
    try:
        redis_url = _start(settings, supervisor, stop)
        if stop.is_set():
            return
        _say(_addresses(settings))
        line = StatusLine(f"http://{settings.host}:{settings.port}", _engine_urls(settings), SystemClock())
        while not stop.wait(1.0):
            supervisor.watch()
            line.show(sys.stdout)
        _say("")
    except PartFailedError as error:
        _say(str(error))
        sys.exit(1)
    finally:
        _say("stopping")
        supervisor.stop()
        if settings.redis_url is None and "redis_url" in locals():
            shutil.rmtree(Path(redis_url.removeprefix("unix://")).parent, ignore_errors=True)


def _start(settings: UpSettings, supervisor: Supervisor, stop: threading.Event) -> str:
    redis_url = settings.redis_url
    if redis_url is None:
        command, redis_url = embedded_redis.server_command(settings.state_dir / "redis")
        supervisor.start([Part("redis", command, _answers(redis_url))], ready_within_s=30.0)
    _write_policy(settings, redis_url)
    parts = [*_engines(settings, redis_url), *_servers(settings, redis_url)]
    if not stop.is_set():
        _say("loading the model (about 30 s on two cores)")
        supervisor.start(parts, READY_WITHIN_S)
    return redis_url


def _check(settings: UpSettings) -> None:
    for flag, name in (("--model", settings.model), ("--drafter", settings.drafter)):
        if name.startswith(("/", ".", "~")) and not (Path(name) / "config.json").is_file():
            fail(PROGRAM, f"{flag}: no model in {name} (there is no config.json); name a model folder")
    if settings.k is not None and settings.k > settings.k_max:
        fail(PROGRAM, f"--k: is {settings.k}; it must be at most --k-max, {settings.k_max}")
    ports = [("--port", settings.port)]
    ports += [("--admin-port", settings.admin_port + index) for index in range(settings.controllers)]
    ports += [("--engine-port", settings.engine_port + index) for index in range(settings.engines)]
    for flag, port in ports:
        if (fault := check_port(settings.host, port)) is not None:
            fail(PROGRAM, f"{flag}: {fault}")
    if settings.redis_url is not None:
        try:
            RedisStore(settings.redis_url).ping()
        except (InvalidDocumentError, PolicyError) as error:
            fail(PROGRAM, f"--redis-url: {error}; check the address, or leave it out for the embedded server")


def _write_policy(settings: UpSettings, redis_url: str) -> None:
    """Write the model's policy if nobody did; an existing one keeps its classes and takes the flags' mode and K."""
    store = RedisStore(redis_url)
    found = store.policy(settings.served_model_name)
    classes = found.policy.classes if found else {name: ClassPolicy() for name in DEMO_CLASSES}
    given = settings.model_fields_set
    policy = Policy(
        model=settings.served_model_name,
        mode=Mode(settings.mode) if found is None or "mode" in given else found.policy.mode,
        static_k=settings.k if found is None or "k" in given else found.policy.static_k,
        classes=classes,
        match=found.policy.match if found else (),
    )
    if found is None or given & {"mode", "k"}:
        store.put_policy(policy, None, SystemClock().now())
    store.close()


def _engines(settings: UpSettings, redis_url: str) -> list[Part]:
    has_gpu = shutil.which("nvidia-smi") is not None
    engine_cores, _ = _cores(settings)
    parts = []
    for index in range(settings.engines):
        port = settings.engine_port + index
        environment = {"HF_HUB_OFFLINE": "1"} if Path(settings.model).is_dir() else {}
        extra: list[str] = []
        if not has_gpu:
            mine = engine_cores[index :: settings.engines] or engine_cores
            # vLLM's worker then runs in the engine's own process, which it allows on a CPU only with that variable at 0
            # (the engine keeps a process of its own all the same). Otherwise the engine waits for its worker in a busy
            # loop, on the core that gateway, controller and API server need.
            environment |= {
                "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "VLLM_CPU_OMP_THREADS_BIND": ",".join(str(core) for core in mine),
                "OMP_NUM_THREADS": str(len(mine)),
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
            *(sys.executable, "-m", "specpilot.cli", "engine"),
            *("--model", settings.model, "--drafter", settings.drafter, "--k-max", str(settings.k_max)),
            *("--served-model-name", settings.served_model_name, "--max-num-seqs", str(settings.max_num_seqs)),
            *("--host", "127.0.0.1", "--port", str(port), "--redis-url", redis_url),
            *(("--static-k", str(settings.k)) if settings.k is not None else ()),
            *extra,
            *shlex.split(settings.engine_args),
        ]
        parts.append(Part(f"engine-{index}", command, _answers(f"http://127.0.0.1:{port}/health"), environment))
    return parts


def _servers(settings: UpSettings, redis_url: str) -> list[Part]:
    _, server_cores = _cores(settings)
    specpilot = (sys.executable, "-m", "specpilot.cli")
    token = ("--admin-token", settings.admin_token) if settings.admin_token else ()
    shared = ("--host", settings.host, "--redis-url", redis_url, *token)
    admin_ports = [settings.admin_port + index for index in range(settings.controllers)]
    return [
        *(
            Part(
                "controller" if port == settings.admin_port else f"controller-{port}",
                [*specpilot, "controller", *shared, "--port", str(port)],
                _answers(f"http://{settings.host}:{port}/health"),
                cores=frozenset(server_cores),
            )
            for port in admin_ports
        ),
        Part(
            "gateway",
            [*specpilot, "gateway", *shared, "--port", str(settings.port), "--workers", str(settings.workers)],
            _answers(f"http://{settings.host}:{settings.port}/ready"),
            cores=frozenset(server_cores),
        ),
    ]


def _cores(settings: UpSettings) -> tuple[list[int], list[int]]:
    """Return the cores of the engines and those of the other programs; where there is only one, it is everybody's."""
    cores = sorted(os.sched_getaffinity(0))
    count = max(1, min(settings.workers, len(cores) - 1))
    return cores[:-count] or cores, cores[-count:]


def _answers(url: str) -> Callable[[], bool]:
    """Return a test whether the server at `url` answers well."""

    def is_ready() -> bool:
        try:
            if url.startswith("unix:"):
                RedisStore(url).ping()
            else:
                with urlopen(url, timeout=1.0):  # noqa: S310 - an address of our own
                    pass
        except (OSError, PolicyError):
            return False
        return True

    return is_ready


def _engine_urls(settings: UpSettings) -> list[str]:
    return [f"http://127.0.0.1:{settings.engine_port + index}" for index in range(settings.engines)]


def _addresses(settings: UpSettings) -> str:
    gateway = f"http://{settings.host}:{settings.port}"
    admin = f"http://{settings.host}:{settings.admin_port}"
    model = settings.served_model_name
    return f"""
SpecPilot is up. K steers itself; mode {settings.mode}.

  OpenAI endpoint   {gateway}/v1            model {model}
  console           {admin}/
  admin API         {admin}/docs
  metrics           {gateway}/metrics  {admin}/metrics  {"  ".join(f"{url}/metrics" for url in _engine_urls(settings))}
  logs              {settings.state_dir / "logs"}

  curl {gateway}/v1/chat/completions -H 'Content-Type: application/json' -H 'X-Traffic-Class: code' \\
    -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "Write a function that adds."}}]}}'

  from openai import OpenAI
  client = OpenAI(base_url="{gateway}/v1", api_key="none")
  client.chat.completions.create(model="{model}", messages=[{{"role": "user", "content": "Hello"}}])

Ctrl-C stops everything.
"""


def _say(text: str) -> None:
    sys.stdout.write(("\r\033[K" if sys.stdout.isatty() else "") + text + "\n")
    sys.stdout.flush()
