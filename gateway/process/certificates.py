"""TLS contexts from certificate files, loaded again when the files change.

The files are checked every `CHECK_S`, on a thread, because secret mounts and certificate managers replace them without
notice. Certificate and key are two files and are replaced one after the other. While they do not match, the present
context stays in use, and they are tried again at the next check. Open connections keep the certificate that they began
with.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from specpilot.gateway.process.start_error import StartError

CHECK_S: Final = 2.0
"""Seconds between two checks of the files."""

_log = logging.getLogger(__name__)


class Certificates:
    """The files of one TLS context. `context` was made from them last: use it for each new connection."""

    def __init__(self, flag: str, paths: Sequence[str | None], make: Callable[[], ssl.SSLContext]) -> None:
        """`make` reads `paths`; `flag` is the setting of the first of them. Raises `StartError`. Blocks."""
        self._flag = flag
        self._paths = tuple(Path(path) for path in paths if path is not None)
        self._make = make
        self._fault: str | None = None  # the fault logged last
        self._last_state = self._state()
        self.context = self._made()

    def reload(self) -> None:
        """Load the files if they have changed. Blocks."""
        state = self._state()
        if state == self._last_state:
            return
        try:
            self.context = self._made()
        except StartError as error:
            if str(error) != self._fault:
                _log.error("the certificates in use stay: %s", error)
            self._fault = str(error)
            return
        self._fault = None
        self._last_state = state
        _log.info("new certificates are in use: %s", ", ".join(map(str, self._paths)))

    async def follow(self) -> None:
        """Check the files until cancelled."""
        while True:
            await asyncio.sleep(CHECK_S)
            try:
                await asyncio.to_thread(self.reload)
            except Exception:  # noqa: BLE001 - if this task ended, the certificates in use would expire
                _log.exception("the files of certificates could not be checked; trying again")

    def _state(self) -> tuple[tuple[int, int, int] | None, ...]:
        """Return values that differ once a file is replaced or written. Links are followed."""
        return tuple(_stamp(path) for path in self._paths)

    def _made(self) -> ssl.SSLContext:
        try:
            return self._make()
        except OSError as error:  # ssl.SSLError is one
            named = ", ".join(map(str, self._paths))
            remedy = "check that the files are there and belong together"
            raise StartError(f"{self._flag}: {named}: {error.strerror or error}; {remedy}") from error


def listener_certificates(cert: str | None, key: str | None, client_ca: str | None) -> Certificates | None:
    """Return the certificates for clients' connections; `None` without `cert`. Raises `StartError`.

    With `client_ca`, only clients with a certificate of that authority are accepted.
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
    """Return the certificates for engines' connections. Raises `StartError`.

    `None`: the system's authorities, and no client certificate.
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
    context.load_cert_chain(cert, key, password=lambda: "")  # else OpenSSL prompts for a password at the terminal


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_ino, stat.st_size
