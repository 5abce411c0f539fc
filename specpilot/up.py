"""`specpilot up`: the whole loop on one machine, on embedded defaults.

Starts Redis, the engines, the controller and the gateway under one supervisor, shows progress, prints all addresses,
and then shows one live line. With `--unattended` it writes JSON lines to standard output instead, also for its parts,
and no log file. It then opens the gateway's port when the engines are ready, reports this to systemd if that started
it, and ends with status 1 when a part keeps dying. `--sagemaker` is `--unattended` with the settings that a managed
endpoint has in its environment.
"""

import fcntl
import os
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

from specpilot import embedded_redis
from specpilot.journal import Journal
from specpilot.policy.audit import AuditEntry, Result, bounded
from specpilot.policy.clock import SystemClock
from specpilot.policy.codec import to_plain
from specpilot.policy.errors import PolicyError, StoreUnavailableError
from specpilot.policy.history import Change, differences
from specpilot.policy.model_policy import ClassPolicy, Mode, Policy
from specpilot.policy.settings import fail
from specpilot.policy.store import Store
from specpilot.readiness import READY, STOPPING, notify
from specpilot.status_line import StatusLine
from specpilot.supervisor import Part, PartFailedError, Supervisor
from specpilot.up_parts import answers, engine_notes, engine_urls, engines, reachable, servers
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
_SWITCH_BACK = " The mode stays in the policy; start once with --mode act to switch back."


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
        problem = f"cannot make {error.filename}: {error.strerror}; name a folder that can be written"
        fail(PROGRAM, f"--state-dir: {problem}")
    check_ports(settings)  # after the claim: who runs in this folder has them
    embedded_url: str | None = None
    try:
        if settings.redis_url is None:
            command, embedded_url = embedded_redis.server_command(settings.state_dir / "redis")
            supervisor.start([Part("redis", command, answers(embedded_url))], ready_within_s=30.0)
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
    line = StatusLine(f"http://{reachable(settings.host)}:{settings.port}", engine_urls(settings), SystemClock())
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
    models, others = engines(settings, redis_url), servers(settings, redis_url)
    say("loading the model")
    for parts in [models, others] if settings.unattended else [models + others]:
        if not stop.is_set():
            supervisor.start(parts, settings.ready_within_s, "--ready-within-s")
    if stop.is_set():
        return None
    for note in engine_notes(settings):
        say(note)
    return policy.mode


def _policy_in_force(
    settings: UpSettings, redis_url: str, stop: threading.Event, say: Callable[[str], None]
) -> Policy | None:
    """Return the policy as soon as Redis takes it, `None` when `stop` came first.

    When a machine starts, Redis may answer later than this program. Raises `PartFailedError` when Redis, absent,
    read-only or full, does not take the policy within `ready_within_s`, or holds one that cannot be read.
    """
    deadline = time.monotonic() + settings.ready_within_s
    reported = ""
    while not stop.is_set():
        try:
            return _write_policy(settings, redis_url, say)
        except StoreUnavailableError as error:
            if time.monotonic() > deadline:
                raise PartFailedError(f"the policy could not be written in time: {error}") from error
            if reported != str(error):
                reported = str(error)
                say(f"waiting for Redis: {reported}")
        except PolicyError as error:
            raise PartFailedError(f"the policy could not be written: {error}") from error
        stop.wait(1.0)
    return None


def _write_policy(settings: UpSettings, redis_url: str, say: Callable[[str], None]) -> Policy:
    """Write the policy that is given, and return the one in Redis then; say which rights are missing there.

    Without `--policy` the model's policy in Redis stays; `--mode` and `--k` change these fields of it. Where there is
    none, one with the demo's classes is written. What was written is in the history and in the audit.
    """
    with closing(Store(redis_url)) as store:
        stored = store.policy(settings.served_model_name)
        policy = policy_given(settings) or _changed(settings, stored.policy if stored else None)
        if stored is None or stored.policy != policy:
            now = SystemClock().now()
            store.put_policy(policy, None, now, Change(AUTHOR))
            before = to_plain(stored.policy if stored else Policy(policy.model))
            changes, left_out = bounded(differences(before, to_plain(policy)))
            entry = AuditEntry(
                now, AUTHOR, "put_policy", policy.model, Result.DONE, changes=changes, changes_left_out=left_out
            )
            store.append_audit(entry)
        if (lacking := store.missing_rights()) is not None:
            say(f"--redis-url: {lacking}")
    return policy


def _changed(settings: UpSettings, policy: Policy | None) -> Policy:
    """Return `policy` with the mode and the K that the flags state; a policy of the defaults where there is none."""
    if policy is None:
        classes = {name: ClassPolicy() for name in DEMO_CLASSES}
        return Policy(settings.served_model_name, Mode(settings.mode), static_k=settings.k, classes=classes)
    fields_set = settings.model_fields_set
    mode = Mode(settings.mode) if "mode" in fields_set else policy.mode
    return replace(policy, mode=mode, static_k=settings.k if "k" in fields_set else policy.static_k)


def _addresses(settings: UpSettings, mode: Mode) -> str:
    gateway = f"http://{reachable(settings.host)}:{settings.port}"
    admin = f"http://{reachable(settings.admin_host)}:{settings.admin_port}"
    model = settings.served_model_name
    return f"""
SpecPilot is up. {_WHAT_K_DOES[mode]}; mode {mode}.{"" if mode is Mode.ACT else _SWITCH_BACK}

  OpenAI endpoint   {gateway}/v1            model {model}
  console           {admin}/
  admin API         {admin}/openapi.json
  metrics           {gateway}/metrics  {admin}/metrics  {"  ".join(f"{url}/metrics" for url in engine_urls(settings))}
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
