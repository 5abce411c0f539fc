"""Finds the engines behind a DNS name: each address of `dns+http://name:port` is one engine.

One thread for each name asks the system's resolver, again and again, so that no request ever waits for DNS. Every
answer is handed over whole: an address that is new is an engine that joins, one that is missing is an engine that
leaves, whose requests under way end in peace. A resolver that fails, and an answer without an address, change
nothing: the last answer holds, and engines that are really gone are ejected by their refused connections.
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
    """Ask the system: hosts file, A and AAAA records. Raises `OSError`."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return frozenset(str(address[0]) for *_, address in found)


class Resolver:
    """Follows `name`, a URL of the form `dns+http://host:port/base`, and hands the engines' URLs to `publish`.

    From its own thread; a `publish` that raises `RuntimeError` (the loop is closed) ends it.
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
        """Begin to follow."""
        self._thread.start()

    def stop(self) -> None:
        """Hand over nothing further. The thread ends with its next answer, or with the process."""
        self._stopped.set()

    def look(self) -> tuple[str, ...]:
        """Ask once; return the engines' URLs, those of the last good answer when there is no new one."""
        try:
            found = sorted(self._look_up(self._host, self._port))
            complaint = None if found else "it has no address"
        except (OSError, UnicodeError) as error:  # UnicodeError: a name that DNS cannot hold
            found, complaint = [], str(error) or type(error).__name__
        if complaint != self._complaint:
            self._complaint = complaint
            if complaint is None:
                _log.warning("%s resolves again", self.name)
            else:
                _log.warning("%s does not resolve, keeping its %d engines: %s", self.name, len(self._last), complaint)
        if found:
            self._last = tuple(self._url(address) for address in found)
        return self._last

    def _url(self, address: str) -> str:
        shown = f"[{address}]" if ":" in address else address
        return f"{self._scheme}://{shown}:{self._port}{self._base}"

    def _run(self) -> None:
        published: tuple[str, ...] = ()
        while not self._stopped.is_set():
            found = self.look()
            if found != published and not self._stopped.is_set():
                try:
                    self._publish(self.name, found)
                except RuntimeError:
                    return
                published = found
                _log.info("%s is %s", self.name, ", ".join(found))
            self._stopped.wait(self._refresh_s)
