"""The limit on open files: each connection of a client or to an engine is one.

Without a free file descriptor a gateway cannot connect to its engines. So the limit is raised to the largest value that
needs no privileges, and a client is accepted only if there is also a descriptor for its connection to an engine.
"""

import resource
from collections.abc import Callable
from typing import Final

FILES_KEPT: Final = 128
"""Open files for other purposes: listeners, Redis, probes, idle connections to engines."""


def raise_limit() -> int | None:
    """Raise this process's limit on open files to its hard limit; return it, `None` for no limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            hard = soft  # some systems report a hard limit that they do not allow
    return None if hard == resource.RLIM_INFINITY else hard


def connections_within(files: int | None, clients: int, say: Callable[[str], None]) -> int:
    """Return how many of `clients` may connect at once if `files` may be open. `say` gets the reason for fewer."""
    if files is None:
        return clients
    room = max(1, (files - FILES_KEPT) // 2)
    if room < clients:
        say(
            f"{room} clients at once rather than the {clients} of --max-connections: {files} files may be open"
            f" (ulimit -n), and each client needs two; allow {2 * clients + FILES_KEPT}"
        )
    return min(room, clients)
