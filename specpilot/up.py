"""`specpilot up`: the whole loop on one machine, on embedded defaults.

Starts Redis, the engines, the controller and the gateway under one supervisor, shows progress, prints all addresses,
and then shows one live line. With `--unattended` it writes JSON lines to standard output instead, also for its parts,
and no log file. It then opens the gateway's port when the engines are ready, reports this to systemd if that started
it, and ends with status 1 when a part keeps dying. `--sagemaker` is `--unattended` with the settings that a managed
endpoint has in its environment.

On a machine without a GPU each engine is bound to cores of its own and the other programs to the last core, or as many
as the gateway has workers: an engine's OpenMP threads spin, and any other busy process on their cores would make its
steps many times longer. With GPUs several engines get a share of them each, are bound to no cores, and the other
programs have all cores but those that the engines need.

Secrets (tokens, the password in a Redis URL) are passed to the parts in their environment, because every user of a
machine can read the arguments of its processes.
"""

import fcntl
import os
import shlex
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import FrameType
from urllib.request import urlopen

from specpilot import embedded_redis, gpus
from specpilot.journal import Journal
from specpilot.policy.audit import AuditEntry, Result, bounded
from specpilot.policy.clock import SystemClock
from specpilot.policy.codec import to_plain
from specpilot.policy.errors import PolicyError, StoreUnavailableError
from specpilot.policy.history import Change, differences
from specpilot.policy.model_policy import ClassPolicy, Mode, Policy
from specpilot.policy.redis_store import RedisStore
from specpilot.policy.settings import fail
from specpilot.readiness import READY, STOPPING, notify
from specpilot.status_line import StatusLine
from specpilot.supervisor import Part, PartFailedError, Supervisor
from specpilot.up_settings import PROGRAM, UpSettings, check, check_ports, policy_given, read

DEMO_CLASSES = ("chat", "code", "json")
AUTHOR = "specpilot up"
"""Who wrote a policy, in its history and the audit."""
DEATHS_LIMIT = 5
_WHAT_K_DOES = {
    Mode.ACT: "K follows the traffic",
    Mode.ADVISE: "K is decided and shown, and each engine runs its static K",
    Mode.OFF: "K is static",
}
CORES_OF_ENGINE = 2
"""Of an engine on GPUs: its API server and its scheduler, which are busy while it serves."""
CORES_OF_GPU = 1
"""Its worker, which launches kernels."""
GATEWAY_STOP_S = 35.0  # it lets requests in flight finish, 30 s at most


def main(arguments: Sequence[str]) -> None:
    """Run until Ctrl-C or SIGTERM; exit status 0 then, 1 when a part could not start, 2 on wrong settings."""
    settings = read(arguments)
    check(settings)
    journal = Journal(sys.stdout, SystemClock().now) if settings.unattended else None
    say = _say if journal is None else journal.say
    stop = threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            sys.exit(130)
        stop.set()

    signal.signal(signal.SIGINT, on_signal)
    signal.signal(signal.SIGTERM, on_signal)
    try:
        claim = _claim(settings.state_dir)
        supervisor = Supervisor(
            settings.state_dir / "logs",
            say,
            None if journal is None else journal.add,
            None if journal is None else DEATHS_LIMIT,
            stop,
        )
    except OSError as error:
        said = f"cannot make {error.filename}: {error.strerror}; name a folder that can be written"
        fail(PROGRAM, f"--state-dir: {said}")
    check_ports(settings)  # after the claim: who runs in this folder has them
    embedded_url: str | None = None
    try:
        if settings.redis_url is None:
            command, embedded_url = embedded_redis.server_command(settings.state_dir / "redis")
            supervisor.start([Part("redis", command, _answers(embedded_url))], ready_within_s=30.0)
        mode = _start(settings, settings.redis_url or str(embedded_url), supervisor, stop, say)
        if mode is None:
            return
        if journal is None:
            _show(settings, mode, supervisor, stop)
        else:
            say("ready")
            notify(READY)
            while not stop.wait(1.0):
                supervisor.watch()
    except PartFailedError as error:
        say(str(error))
        sys.exit(1)
    finally:
        notify(STOPPING)
        say("stopping")
        supervisor.stop()
        if embedded_url is not None:
            shutil.rmtree(Path(embedded_url.removeprefix("unix://")).parent, ignore_errors=True)
        os.close(claim)


def _claim(state_dir: Path) -> int:
    """Lock `state_dir` for this process until the file descriptor returned is closed.

    Two servers would write one append-only file. Ends the program when another has the folder; raises `OSError`.
    """
    state_dir.mkdir(parents=True, exist_ok=True)
    claim = os.open(state_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fail(PROGRAM, f"--state-dir: another specpilot up runs in {state_dir}; stop it, or name another folder")
    return claim


def _show(settings: UpSettings, mode: Mode, supervisor: Supervisor, stop: threading.Event) -> None:
    """Print all addresses and keep one live line until `stop`."""
    _say(_addresses(settings, mode))
    line = StatusLine(f"http://{_reachable(settings.host)}:{settings.port}", _engine_urls(settings), SystemClock())
    while not stop.wait(1.0):
        supervisor.watch()
        line.show(sys.stdout)
    _say("")


def _start(
    settings: UpSettings, redis_url: str, supervisor: Supervisor, stop: threading.Event, say: Callable[[str], None]
) -> Mode | None:
    """Start every part but Redis; return the mode in force, `None` when `stop` came first."""
    policy = _policy_in_force(settings, redis_url, stop, say)
    if policy is None:
        return None
    engines, servers = _engines(settings, redis_url), _servers(settings, redis_url)
    say("loading the model")
    for parts in [engines, servers] if settings.unattended else [engines + servers]:
        if not stop.is_set():
            supervisor.start(parts, settings.ready_within_s)
    return None if stop.is_set() else policy.mode


def _policy_in_force(
    settings: UpSettings, redis_url: str, stop: threading.Event, say: Callable[[str], None]
) -> Policy | None:
    """Return the policy as soon as Redis takes it, `None` when `stop` came first.

    When a machine starts, Redis may answer later than this program. Raises `PartFailedError` when Redis, absent,
    read-only or full, does not take the policy within `ready_within_s`, or holds one that cannot be read.
    """
    deadline = time.monotonic() + settings.ready_within_s
    said = ""
    while not stop.is_set():
        try:
            return _write_policy(settings, redis_url)
        except StoreUnavailableError as error:
            if time.monotonic() > deadline:
                raise PartFailedError(f"the policy could not be written in time: {error}") from error
            if said != str(error):
                said = str(error)
                say(f"waiting for Redis: {said}")
        except PolicyError as error:
            raise PartFailedError(f"the policy could not be written: {error}") from error
        stop.wait(1.0)
    return None


def _write_policy(settings: UpSettings, redis_url: str) -> Policy:
    """Write the policy that is given, and return the one in Redis then.

    Without `--policy` the model's policy in Redis stays; `--mode` and `--k` change these fields of it. Where there is
    none, one with the demo's classes is written. What was written is in the history and in the audit.
    """
    with closing(RedisStore(redis_url)) as store:
        found = store.policy(settings.served_model_name)
        policy = policy_given(settings) or _changed(settings, found.policy if found else None)
        if found is None or found.policy != policy:
            now = SystemClock().now()
            store.put_policy(policy, None, now, Change(AUTHOR))
            before = to_plain(found.policy if found else Policy(policy.model))
            changes, left_out = bounded(differences(before, to_plain(policy)))
            entry = AuditEntry(
                now, AUTHOR, "put_policy", policy.model, Result.DONE, changes=changes, changes_left_out=left_out
            )
            store.append_audit(entry)
    return policy


def _changed(settings: UpSettings, policy: Policy | None) -> Policy:
    """Return `policy` with the mode and the K that the flags state; a policy of the defaults where there is none."""
    if policy is None:
        classes = {name: ClassPolicy() for name in DEMO_CLASSES}
        return Policy(settings.served_model_name, Mode(settings.mode), static_k=settings.k, classes=classes)
    given = settings.model_fields_set
    mode = Mode(settings.mode) if "mode" in given else policy.mode
    return replace(policy, mode=mode, static_k=settings.k if "k" in given else policy.static_k)


def _engines(settings: UpSettings, redis_url: str) -> list[Part]:
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
        parts.append(Part(f"engine-{index}", command, _answers(f"http://127.0.0.1:{port}/health"), environment))
    return parts


def _servers(settings: UpSettings, redis_url: str) -> list[Part]:
    has_gpu = shutil.which("nvidia-smi") is not None
    _, server_cores = _cores(settings, max(1, len(gpus.visible(os.environ))) if has_gpu else 0)
    specpilot = (sys.executable, "-m", "specpilot.cli")
    public = ("--public-paths", settings.public_paths) if settings.public_paths else ()
    way_in = () if settings.admin_token else ("--trust-this-machine",)
    admin_ports = [settings.admin_port + index for index in range(settings.controllers)]
    return [
        *(
            Part(
                "controller" if port == settings.admin_port else f"controller-{port}",
                [*specpilot, "controller", *way_in, "--host", settings.admin_host, "--port", str(port)],
                _answers(f"http://{_reachable(settings.admin_host)}:{port}/health"),
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
            _answers(f"http://{_reachable(settings.host)}:{settings.port}/ready"),
            {"REDIS_URL": redis_url} | _token_for("GATEWAY", settings),
            cores=frozenset(server_cores),
            stop_s=GATEWAY_STOP_S,
        ),
    ]


def _redis_for(program: str, url: str) -> dict[str, str]:
    """Return the variables that name Redis to `program`, which reads one of its own before the common one."""
    return {"REDIS_URL": url, f"SPECPILOT_{program}_REDIS_URL": url}


def _token_for(program: str, settings: UpSettings) -> dict[str, str]:
    return {f"SPECPILOT_{program}_ADMIN_TOKEN": settings.admin_token} if settings.admin_token else {}


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


def _reachable(host: str) -> str:
    """Return the address on this machine of a server that listens on `host`."""
    loopback = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound
    return f"[{loopback}]" if ":" in loopback else loopback


def _engine_urls(settings: UpSettings) -> list[str]:
    return [f"http://127.0.0.1:{settings.engine_port + index}" for index in range(settings.engines)]


def _addresses(settings: UpSettings, mode: Mode) -> str:
    gateway = f"http://{_reachable(settings.host)}:{settings.port}"
    admin = f"http://{_reachable(settings.admin_host)}:{settings.admin_port}"
    model = settings.served_model_name
    return f"""
SpecPilot is up. {_WHAT_K_DOES[mode]}; mode {mode}.

  OpenAI endpoint   {gateway}/v1            model {model}
  console           {admin}/
  admin API         {admin}/openapi.json
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
