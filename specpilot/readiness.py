"""Reports the state of this process to the service manager that started it, by systemd's notify protocol."""

import os
import socket

READY = "READY=1"
STOPPING = "STOPPING=1"


def notify(state: str, address: str | None = None) -> None:
    """Send `state` to the socket at `address`, default `NOTIFY_SOCKET`; without one do nothing.

    A socket that does not answer is ignored: systemd then ends the service by its own time-out.
    """
    address = os.environ.get("NOTIFY_SOCKET") if address is None else address
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
        try:
            manager.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)
        except OSError:
            return
