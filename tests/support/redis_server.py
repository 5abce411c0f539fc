"""A real redis-server for a test: the embedded one, or the system's."""

import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from specpilot.embedded_redis import executable
from specpilot.policy.errors import StoreUnavailableError
from specpilot.policy.redis_store import RedisStore

EMBEDDED = executable()
SYSTEM = shutil.which("redis-server", path="/usr/local/bin:/usr/bin")  # not the one of a virtual environment
NEEDS_SYSTEM = pytest.mark.skipif(SYSTEM is None, reason="needs a redis-server of the system")


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
        store = RedisStore(self.url)
        for _ in range(100):
            try:
                store.ping()
                return
            except StoreUnavailableError:
                time.sleep(0.05)
        raise AssertionError("redis-server did not start")

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
