"""TCP keep-alive: the kernel asks on a silent connection whether its peer is still there.

A stream under way may be silent for minutes, because the model prefills or the client does not read. Routers forget
such connections, and a peer that lost its power sends nothing. The probes keep the connection known. They also end one
without a peer, which HTTP would notice only by a time-out.
"""

import socket
from typing import Any, Final

PROBES: Final = 3
"""Probes without an answer after which the connection is closed."""


def probe(connection: Any, interval_s: int) -> None:
    """Probe `connection`, a socket, after `interval_s` of silence and as often from then on; never if it is 0.

    Connections that are accepted on a listening socket inherit its options.
    """
    if interval_s:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, interval_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
