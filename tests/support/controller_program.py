"""A real controller process on a real Redis, and calls of its admin API."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from typing import IO, Any

from specpilot.policy import redis_keys
from specpilot.policy.store import Store
from tests.support.commands import run
from tests.support.patience import PATIENCE_S
from tests.support.redis_server import RedisServer
from tests.support.stack import call, free_port, until, wait_for

TOKEN = "let me in"


@dataclass
class Controller:
    url: str
    redis: Any
    """Its own `RedisServer`, `None` where a test gives the address of another."""

    process: subprocess.Popen[bytes]

    def call(
        self, path: str, method: str = "GET", body: Any = None, token: str | None = TOKEN, **headers: str
    ) -> tuple[int, Any, dict[str, str]]:
        bearer = {"Authorization": f"Bearer {token}"} if token else {}
        return call(self.url + path, method, body, {name.replace("_", "-"): headers[name] for name in headers} | bearer)

    def command(self, *words: str, text: str = "") -> subprocess.CompletedProcess[str]:
        return run(*words, "--admin-url", self.url, "--token", TOKEN, text=text)


@contextmanager
def running_controller(
    token: str | None = TOKEN,
    *,
    trusts_this_machine: bool = True,
    arguments: Sequence[str] = (),
    log: IO[bytes] | None = None,
    redis_url: str | None = None,
) -> Iterator[Controller]:
    """A controller with the admin token `token`, until the end of the context; its standard error goes to `log`.

    It has a Redis of its own, or with `redis_url` that one.
    """
    port = free_port()
    with RedisServer() if redis_url is None else nullcontext() as redis:
        address = redis_url or redis.url
        environment = {**os.environ, "REDIS_URL": address}
        if token is not None:
            environment["SPECPILOT_CONTROLLER_ADMIN_TOKEN"] = token
        elif trusts_this_machine:
            environment["SPECPILOT_CONTROLLER_TRUST_THIS_MACHINE"] = "true"
        flags = ("--port", str(port), "--log-level", "warning", *arguments)
        process = subprocess.Popen([sys.executable, "-m", "specpilot.controller", *flags], env=environment, stderr=log)
        found = Controller(f"http://127.0.0.1:{port}", redis, process)
        try:
            wait_for(f"{found.url}/ready", process)
            with closing(Store(address, PATIENCE_S)) as store:  # it takes the lead by a thread of its own
                until(lambda: store._redis.exists(redis_keys.LEASE), every=0.02)
            yield found
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
            process.wait()


def newest(controller: Controller, count: int = 1) -> list[dict[str, Any]]:
    """The last entries of the audit, the newest first."""
    found: list[dict[str, Any]] = controller.call(f"/admin/audit?limit={count}")[1]["entries"]
    return found
