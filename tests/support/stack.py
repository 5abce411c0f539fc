"""The whole product as a user starts it, `specpilot up`, on ports and in a folder of its own."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from prometheus_client.parser import text_string_to_metric_families

from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
DEMO_MODEL = ROOT / "deploy" / "demo_model"
CLASSES = ("chat", "code", "json")


FIRST_PORT, LAST_PORT = 10_000, 32_000


def free_port() -> int:
    """Return a port that is free now, for a program that listens on it later.

    It lies below the ports that Linux gives to connections and to who asks for any: none of these takes it meanwhile.
    """
    while True:
        port = FIRST_PORT + secrets.randbelow(LAST_PORT - FIRST_PORT)
        if is_free(port):
            return port


def is_free(port: int) -> bool:
    """Whether a program can listen on a port of the loopback."""
    with closing(socket.socket()) as probe, suppress(OSError):
        probe.bind(("127.0.0.1", port))
        return True
    return False


def prompts(count: int) -> list[tuple[str, dict[str, Any]]]:
    """Return about `count` held-out chat requests with their class, all classes alike."""
    every = []
    for name in CLASSES:
        lines = (DEMO_MODEL / "prompts" / f"{name}.jsonl").read_text().splitlines()
        every += [(name, json.loads(line)) for line in lines[: -(-count // len(CLASSES))]]
    return every


def call(
    url: str,
    method: str = "GET",
    body: object = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = PATIENCE_S,
) -> tuple[int, Any, dict[str, str]]:
    """Return status, JSON body (or text, `None` without one) and headers, their names in small letters."""
    data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
    request = Request(url, method=method, data=data, headers={"Content-Type": "application/json", **(headers or {})})
    try:
        with urlopen(request, timeout=timeout_s) as reply:
            status, text, fields = reply.status, reply.read(), reply.headers
    except HTTPError as error:
        with error:
            status, text, fields = error.code, error.read(), error.headers
    found = {name.lower(): value for name, value in fields.items()}
    try:
        return status, json.loads(text) if text else None, found
    except ValueError:
        return status, text.decode(), found


def counters(url: str, name: str, *labels: str) -> dict[tuple[str, ...], float]:
    """Return the values of the metric `name` at `url`, summed by the given labels."""
    found: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(call(f"{url}/metrics")[1]):
        for sample in family.samples:
            if sample.name == name:
                key = tuple(sample.labels.get(label, "") for label in labels)
                found[key] = found.get(key, 0.0) + sample.value
    return found


class Engine:
    """An engine without the rest: `specpilot engine` with the flags given."""

    program = ("specpilot.cli", "engine", "--model")
    """The module that starts it, and its arguments before the model."""

    def __init__(self, folder: Path, *flags: str, model: Path = DEMO_MODEL / "target", **variables: str) -> None:
        """`variables` are added to the environment."""
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / f"engine-{self.port}.log"
        self._log = self.log.open("wb")
        command = [sys.executable, "-m", *self.program, str(model)]
        command += ["--port", str(self.port), "--served-model-name", "demo", "--enforce-eager"]
        command += ["--max-num-seqs", "32", "--max-model-len", "2048", *flags]
        command += ["--distributed-executor-backend", "uni"]
        environment = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "SPECPILOT_ENGINE_DRAIN_GRACE_S": "0"}
        environment |= {"SPECPILOT_ENGINE_TRUST_THIS_MACHINE": "1", "SPECPILOT_ENGINE_URL": self.url}
        # As in `specpilot up`: a worker in its own process would load vLLM once more, and be waited for in a busy loop.
        environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        environment |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            command,
            env=os.environ | environment | variables,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        with ended_on_failure(self.process):
            wait_for(f"{self.url}/health", self.process, 180.0)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60.0)
        self._log.close()


class Stack:
    """`specpilot up`, ready."""

    def __init__(self, folder: Path, *flags: str, **variables: str) -> None:
        """`variables` are added to the environment."""
        self.folder = folder
        ports = {name: free_port() for name in ("port", "admin-port", "engine-port")}
        self.gateway = f"http://127.0.0.1:{ports['port']}"
        self.admin = f"http://127.0.0.1:{ports['admin-port']}"
        self.engine = f"http://127.0.0.1:{ports['engine-port']}"
        command = [sys.executable, "-m", "specpilot.cli", "up", "--state-dir", str(folder / "state"), *flags]
        command += [item for name, port in ports.items() for item in (f"--{name}", str(port))]
        self._output = (folder / "up.log").open("wb")
        self.process = subprocess.Popen(
            command,
            env=os.environ | variables,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        with ended_on_failure(self.process):
            wait_for(f"{self.gateway}/ready", self.process, 300.0)
            wait_for(f"{self.engine}/health", self.process)
            until(lambda: "SpecPilot is up" in self.said())

    def said(self) -> str:
        return (self.folder / "up.log").read_text(errors="replace")

    def children(self) -> dict[str, int]:
        """Return the process ids of the parts by what their command line names."""
        found = {}
        for folder in Path("/proc").iterdir():
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
                parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, ValueError, IndexError):
                continue
            if parent == self.process.pid:
                line = b" ".join(words).decode(errors="replace")
                for name in ("redis-server", "controller", "gateway", "api_server"):
                    if name in line:
                        found[name] = int(folder.name)
                        break
        return found

    def put_policy(self, **changes: Any) -> None:
        """Change the demo model's policy through the admin API."""
        url = f"{self.admin}/admin/policies/demo"
        _, body, headers = call(url)
        status, answer, _ = call(url, "PUT", body["policy"] | changes, {"If-Match": headers["etag"]})
        assert status == 200, answer

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        status = self.process.wait(90.0)
        self._output.close()
        return status


@contextmanager
def ended_on_failure(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """End `process` and its group when what waits for it fails: nobody else has a hand on it yet."""
    try:
        yield
    except BaseException:
        with suppress(ProcessLookupError):  # it has ended by itself
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(60.0)
        raise


def wait_for(url: str, process: subprocess.Popen[bytes], seconds: float = PATIENCE_S) -> None:
    latest: object = None

    def answers() -> bool:
        nonlocal latest
        assert process.poll() is None, f"the process behind {url} ended with {process.returncode}"
        try:
            latest = call(url)
        except OSError as error:
            latest = error
            return False
        return latest[0] == 200

    try:
        until(answers, seconds)
    except AssertionError as error:
        error.add_note(f"the latest answer of {url}: {latest!r}")
        raise


def until(condition: Any, seconds: float = PATIENCE_S, every: float = 0.1) -> float:
    """Wait until `condition()` holds; return how many seconds it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, f"not within {seconds} s"
        time.sleep(every)
    return time.monotonic() - began
