"""Whether a TCP port can be listened on."""

import socket


def check_port(host: str, port: int) -> str | None:
    """Return why `host:port` cannot be listened on, with the remedy; `None` when it can."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return f"{host}:{port} cannot be used ({error.strerror}); choose another port"
    return None
