"""Processes that a measurement starts: waits until they answer, and ends them."""

import subprocess
import time
from typing import Any

from specpilot.policy.http_client import open_url
from specpilot.policy.settings import fail


def end(*processes: "subprocess.Popen[Any]", within_s: float = 30.0) -> None:
    """End processes together by SIGTERM, and by SIGKILL after `within_s` seconds."""
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(within_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for(program: str, url: str, within_s: float) -> None:
    """Return once a GET of `url` succeeds; end `program` with one line when it does not in time."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            with open_url(url, timeout=2.0):
                return
        except OSError:
            if time.monotonic() > deadline:
                fail(program, f"nothing answered at {url} within {within_s:.0f} s")
            time.sleep(0.3)
