"""How many files a gateway may have open: each connection is one, a client's and an engine's alike.

Out of descriptors a gateway cannot reach its engines. So the limit is raised as far as it goes without privileges, and
no more clients are admitted than can each have a connection to an engine.
"""

import resource
from collections.abc import Callable
from typing import Final

FILES_KEPT: Final = 128
"""Open files that are no clients' and no requests': listeners, Redis, probes, connections to engines kept open."""


def raise_limit() -> int | None:
    """Raise this process's limit of open files to the most that it may have; return it, `None` where there is none."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            hard = soft  # a system that names no such limit and does not grant it either
    return None if hard == resource.RLIM_INFINITY else hard


def connections_within(files: int | None, wanted: int, say: Callable[[str], None]) -> int:
    """Return how many clients may be connected where `wanted` are allowed and `files` may be open; `say` why fewer."""
    if files is None:
        return wanted
    room = max(1, (files - FILES_KEPT) // 2)
    if room < wanted:
        say(
            f"{room} clients at once rather than the {wanted} of --max-connections: {files} files may be open"
            f" (ulimit -n), and each client needs two; allow {2 * wanted + FILES_KEPT}"
        )
    return min(room, wanted)
