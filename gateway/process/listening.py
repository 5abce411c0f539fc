"""The sockets that the gateway listens on.

Several workers share one port by `SO_REUSEPORT`: each has a socket of its own, and the kernel spreads new connections
over those that listen. With the option a second gateway of the same user could also use the same port unnoticed. So the
port is first bound once without it.
"""

import socket
from typing import Final

from specpilot.gateway.process.start_error import StartError

BACKLOG: Final = 4096
"""Connections that may wait to be accepted. A larger number allows larger bursts of clients, at the cost of kernel
memory."""


def listen(host: str, port: int, flag: str = "--port") -> socket.socket:
    """Return a socket that listens on a port of its own; `flag` is the port's setting. Raises `StartError`."""
    bound = _bind(host, port, flag, is_shared=False)
    bound.listen(BACKLOG)
    return bound


def reserve(host: str, port: int, flag: str = "--port") -> socket.socket:
    """Return a socket that only reserves `port`, or a free one for 0, for others to `share`. Raises `StartError`."""
    if port:
        _bind(host, port, flag, is_shared=False).close()
    return _bind(host, port, flag, is_shared=True)


def share(reserved: socket.socket) -> socket.socket:
    """Return another socket on the port of `reserved`. It gets connections once it listens."""
    # The address alone lacks the zone of a link-local one.
    host, port = socket.getnameinfo(reserved.getsockname(), socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)
    return _bind(host, int(port), "--port", is_shared=True)


def listen_together(host: str, port: int, flag: str) -> socket.socket:
    """Return a socket that listens on `port` beside those of other workers. Raises `StartError`."""
    bound = _bind(host, port, flag, is_shared=True)
    bound.listen(BACKLOG)
    return bound


def url_of(listener: socket.socket, *, is_tls: bool = False) -> str:
    """Return the URL of `listener`."""
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if is_tls else 'http'}://{shown}:{port}"


def _bind(host: str, port: int, flag: str, *, is_shared: bool) -> socket.socket:
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:  # UnicodeError: the name cannot be encoded for DNS
        reason = getattr(error, "strerror", error)
        raise StartError(f"--host: {host} is no address of this machine: {reason}; try 127.0.0.1") from error
    bound = socket.socket(family, kind, proto)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        fault = (
            f"cannot listen on {host}:{port}: {error.strerror}; stop the program that uses it or choose another port"
        )
        raise StartError(f"{flag}: {fault}") from error
    bound.setblocking(False)
    return bound
