"""The constants of processes, each with its unit and what it trades; by module."""

from typing import Final

# certificates.py

LOOK_S: Final = 2.0
"""Seconds between two looks at the files."""

# lifespan.py

FIRST_PROBE_S: Final = 1.0
"""Seconds that the first look at the engines may take before requests are taken without it."""

# listening.py

BACKLOG: Final = 4096
"""Connections that may wait to be accepted: a stampede of clients against memory of the kernel."""

# open_files.py

FILES_KEPT: Final = 128
"""Open files that are no clients' and no requests': listeners, Redis, probes, connections to engines kept open."""

# server.py

LINGER_S: Final = 2.0
"""Seconds without a request after which a worker that was replaced ends: its clients' pauses against two workers."""

ANOTHER_SIGNAL_S: Final = 0.5
"""Seconds within which a second signal to a worker is the same one, passed on."""

# supervision.py

PAUSE_S: Final = 1.0
"""Seconds before a worker that died young is replaced, at first."""

PAUSE_LIMIT_S: Final = 30.0
"""The longest such pause, doubling up to it: service against a busy loop."""

HEALTHY_S: Final = 60.0
"""A worker that lived so long is replaced at once."""

START_LIMIT_S: Final = 60.0
"""Seconds that a worker may take to get ready before it is killed."""

# supervisor.py

LEDGER_S: Final = 60.0
"""Seconds after which the ledger is written anew though nothing changed: cleaners look for what is old."""

# tls_listener.py

HANDSHAKE_S: Final = 10.0
"""Seconds that a client may take to agree on TLS: slow networks against places that nobody uses."""

HANDSHAKES_ADMIN_MAX: Final = 128
"""Handshakes under way on the port for operators: a few Prometheus servers and health checks."""

ACCEPTS_A_TURN: Final = 64
"""Connections that are accepted in one turn of the loop: each begins a handshake of some 0.5 ms in a later one."""

ACCEPT_PAUSE_S: Final = 1.0
"""Seconds before accepting is tried again when the system has no descriptor left."""

# worker.py

RETRY_S: Final = 0.5
"""Seconds between two tries to read Redis before the start."""

PUBLISH_S: Final = 1.0
"""Seconds between two snapshots of a worker's counts: how much its sudden death can lose."""
