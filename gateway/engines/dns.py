"""Finds the engines behind a DNS name: each address of `dns+http://name:port` is one engine.

One thread for each name calls the system's resolver repeatedly, so that no request waits for DNS. Each answer replaces
the one before. An engine with a new address joins. An engine whose address is missing leaves, and its requests under
way finish. When the resolver fails, or returns no address, the last answer stays in force: engines that have stopped
are ejected when they refuse connections.
"""

import logging
import socket
import threading
from collections.abc import Callable, Collection
from urllib.parse import urlsplit

PREFIX = "dns+"
DEFAULT_PORTS = {"http": 80, "https": 443}

_log = logging.getLogger(__name__)

Lookup = Callable[[str, int], Collection[str]]
"""Returns the addresses of a name, for a port; raises `OSError`. May block."""


def lookup(host: str, port: int) -> frozenset[str]:
    """Resolve `host` by the system: hosts file, A and AAAA records. Raises `OSError`."""
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return frozenset(str(address[0]) for *_, address in addresses)


class Resolver:
    """Follows `name`, a URL of the form `dns+http://host:port/base`, and passes the engines' URLs to `publish`.

    Calls `publish` from its own thread. A `publish` that raises `RuntimeError` (the loop is closed) ends the thread.
    """

    def __init__(
        self, name: str, look_up: Lookup, publish: Callable[[str, tuple[str, ...]], None], refresh_s: float
    ) -> None:
        parts = urlsplit(name)
        self.name = name
        self._scheme = parts.scheme.removeprefix(PREFIX)
        self._host = parts.hostname or ""
        self._port = parts.port or DEFAULT_PORTS[self._scheme]
        self._base = parts.path.rstrip("/")
        self._look_up = look_up
        self._publish = publish
        self._refresh_s = refresh_s
        self._last: tuple[str, ...] = ()
        self._complaint: str | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"dns {self._host}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Publish nothing more. The thread ends after its current look-up, or with the process."""
        self._stopped.set()

    def resolve(self) -> tuple[str, ...]:
        """Resolve the name once and return the engines' URLs; without a new answer, those of the last good one."""
        try:
            addresses = sorted(self._look_up(self._host, self._port))
            complaint = None if addresses else "it has no address"
        except (OSError, UnicodeError) as error:  # UnicodeError: the name cannot be encoded for DNS
            addresses, complaint = [], str(error) or type(error).__name__
        if complaint != self._complaint:
            self._complaint = complaint
            if complaint is None:
                _log.warning("%s resolves again", self.name)
            else:
                _log.warning("%s does not resolve, keeping its %d engines: %s", self.name, len(self._last), complaint)
        if addresses:
            self._last = tuple(self._url(address) for address in addresses)
        return self._last

    def _url(self, address: str) -> str:
        shown = f"[{address}]" if ":" in address else address
        return f"{self._scheme}://{shown}:{self._port}{self._base}"

    def _run(self) -> None:
        published: tuple[str, ...] = ()
        while not self._stopped.is_set():
            urls = self.resolve()
            if urls != published and not self._stopped.is_set():
                try:
                    self._publish(self.name, urls)
                except RuntimeError:
                    return
                published = urls
                _log.info("%s is %s", self.name, ", ".join(urls))
            self._stopped.wait(self._refresh_s)
