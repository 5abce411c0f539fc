"""Whether a TCP port can be listened on."""

import socket


def check_port(host: str, port: int) -> str | None:
    """Return why `host:port` cannot be listened on, with the remedy; `None` when it can."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, UnicodeError) as error:  # UnicodeError: the host's name cannot be encoded for DNS
        return f"{host}:{port} cannot be used ({getattr(error, 'strerror', error)}); choose another port"
    return None
