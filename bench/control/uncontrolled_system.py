"""A system of its own for a measurement, without a controller."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from specpilot import embedded_redis
from specpilot.bench.load.system import start_up, stop_up
from specpilot.bench.process_end import end
from specpilot.bench.report.output import say


class UncontrolledSystem(NamedTuple):
    """A Redis server with its URL, and `specpilot up` with engines and a gateway, which may still be starting."""

    redis: subprocess.Popen[bytes]
    redis_url: str
    up: subprocess.Popen[bytes]


@contextmanager
def uncontrolled_system(folder: Path, flags: Sequence[str]) -> Iterator[UncontrolledSystem]:
    """Run the system; `flags` are those of `specpilot up`. Its state and its output are in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    command, redis_url = embedded_redis.server_command(folder / "redis")
    redis = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    say(f"starting a system; its output goes to {folder / 'up.log'}")
    with (folder / "up.log").open("wb") as output:
        up = start_up(["--controllers", "0", "--redis-url", redis_url, "--state-dir", str(folder), *flags], output)
    try:
        yield UncontrolledSystem(redis, redis_url, up)
    finally:
        stop_up(up)
        end(redis)
