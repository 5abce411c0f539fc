"""TLS contexts made of certificate files, and made anew when the files change.

Files are looked at every `CHECK_S`, on a thread: secret mounts and certificate managers replace them without a word to
anybody. Certificate and key are two files and change one after the other, so a pair that does not fit keeps the context
that there is, and is tried again at the next look. Connections that stand keep what they began with.
"""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from specpilot.gateway.process.start_error import StartError

CHECK_S: Final = 2.0
"""Seconds between two looks at the files."""

_log = logging.getLogger(__name__)


class Certificates:
    """The files of one TLS context. `context` is that made of them last."""

    def __init__(self, flag: str, paths: Sequence[str | None], make: Callable[[], ssl.SSLContext]) -> None:
        """`make` reads `paths`, of which `flag` names the first. Raises `StartError`. Blocks."""
        self._flag = flag
        self._paths = tuple(Path(path) for path in paths if path is not None)
        self._make = make
        self._said: str | None = None
        self._seen = self._state()
        self.context = self._made()

    def reload(self) -> bool:
        """Return whether there is a new context, because files have changed. Blocks."""
        state = self._state()
        if state == self._seen:
            return False
        try:
            self.context = self._made()
        except StartError as error:
            if str(error) != self._said:
                _log.error("the certificates in use stay: %s", error)
            self._said = str(error)
            return False
        self._said = None
        self._seen = state
        _log.info("new certificates are in use: %s", ", ".join(map(str, self._paths)))
        return True

    async def follow(self, changed: Callable[[ssl.SSLContext], Awaitable[None]] | None = None) -> None:
        """Look for ever; `changed` gets each new context, again at the next look if it fails."""
        is_due = False
        while True:
            await asyncio.sleep(CHECK_S)
            try:
                is_due = await asyncio.to_thread(self.reload) or is_due
                if is_due and changed is not None:
                    await changed(self.context)
                is_due = False
            except Exception:  # noqa: BLE001 - without this task the certificates in use would expire
                _log.exception("new certificates could not be taken into use; trying again")

    def _state(self) -> tuple[tuple[int, int, int] | None, ...]:
        """Return what differs when a file was replaced or written; links are followed."""
        return tuple(_stamp(path) for path in self._paths)

    def _made(self) -> ssl.SSLContext:
        try:
            return self._make()
        except OSError as error:  # ssl.SSLError is one
            named = ", ".join(map(str, self._paths))
            remedy = "check that the files are there and belong together"
            raise StartError(f"{self._flag}: {named}: {error.strerror or error}; {remedy}") from error


def listener_certificates(cert: str | None, key: str | None, client_ca: str | None) -> Certificates | None:
    """Return what serves clients, with `client_ca` only those with a certificate of it; `None` without `cert`.

    Raises `StartError`.
    """
    if cert is None:
        return None

    def make() -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=client_ca)
        if client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
        context.set_alpn_protocols(["http/1.1"])
        _load(context, cert, key)
        return context

    return Certificates("--tls-cert-file", (cert, key, client_ca), make)


def engine_certificates(ca: str | None, cert: str | None, key: str | None) -> Certificates | None:
    """Return what connections to engines are made with; `None`: the system's authorities, and no certificate.

    Raises `StartError`.
    """
    if ca is None and cert is None:
        return None

    def make() -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=ca)
        if cert is not None:
            _load(context, cert, key)
        return context

    return Certificates("--engine-cert-file" if ca is None else "--engine-ca-file", (ca, cert, key), make)


def _load(context: ssl.SSLContext, cert: str, key: str | None) -> None:
    context.load_cert_chain(cert, key, password=lambda: "")  # else a key with a password asks for it at the terminal


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
