"""Ends processes that a measurement started."""

import subprocess
from typing import Any


def end(*processes: "subprocess.Popen[Any]", within_s: float = 30.0) -> bool:
    """End processes together by SIGTERM, and by SIGKILL after `within_s` seconds; return whether SIGTERM sufficed."""
    is_enough = True
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(within_s)
        except subprocess.TimeoutExpired:
            is_enough = False
            process.kill()
            process.wait()
    return is_enough
