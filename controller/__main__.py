"""`specpilot controller`: starts the controller, or prints in one line why it cannot."""

import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Sequence
from importlib.util import find_spec

import uvicorn

from specpilot.controller.admin.audited import AUDIT_LOGGER
from specpilot.controller.app import create_app
from specpilot.controller.settings import ControllerSettings
from specpilot.policy import json_log
from specpilot.policy.clock import SystemClock
from specpilot.policy.errors import InvalidDocumentError, PolicyError
from specpilot.policy.http_client import CONTROLLER, PART
from specpilot.policy.settings import fail, load, without_secrets
from specpilot.policy.store import Store

PROGRAM = "specpilot controller"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run until stopped. Ends the process with status 2 when it cannot start."""
    settings = load(ControllerSettings, PROGRAM, sys.argv[1:] if arguments is None else arguments)
    if settings.log_format == "json":
        json_log.use(settings.log_level)
    else:
        line = "%(asctime)s %(levelname)s %(name)s: %(message)s"
        logging.basicConfig(level=settings.log_level.upper(), format=line, stream=sys.stderr)
    _log_audit()
    log = logging.getLogger("controller")
    try:
        store = Store(settings.redis_url)
        store.ping()
        if (lacking := store.missing_rights()) is not None:
            log.warning("--redis-url: %s", lacking)
    except InvalidDocumentError as error:
        fail(PROGRAM, *(f"--redis-url: {fault}" for fault in error.faults))
    except PolicyError as error:
        fail(
            PROGRAM,
            f"--redis-url: {without_secrets(settings.redis_url)} cannot be used: {error}; "
            "start Redis there or give another URL",
        )
    if settings.oidc_issuer is not None and find_spec("jwt") is None:
        fail(PROGRAM, "--oidc-issuer: needs PyJWT; pip install 'specpilot[oidc]'")
    listener = _listen(settings.host, settings.port)
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    log.info("admin API and console on http://%s:%d, leader's lease as %s", shown, port, settings.holder)
    if settings.admin_token is None and settings.trust_this_machine:
        log.warning("no --admin-token: the admin API serves every program on this machine, and no other caller")
    elif settings.admin_token is None:
        log.warning("no --admin-token: the admin API serves only callers with a named token")
    config = uvicorn.Config(
        create_app(settings, store, SystemClock()),
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=3,
        headers=[(PART, CONTROLLER)],
    )
    with contextlib.suppress(KeyboardInterrupt):
        # uvicorn raises the signal again after it has closed everything; as KeyboardInterrupt it ends with status 0.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        uvicorn.Server(config).run(sockets=[listener])
    store.close()


def _log_audit() -> None:
    """Write each audit entry as one JSON object a line, independent of `--log-level`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter('{"audit": %(message)s}'))
    logger = logging.getLogger(AUDIT_LOGGER)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(handler)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except (OSError, UnicodeError) as error:  # UnicodeError: the host's name cannot be encoded for DNS
        reason = getattr(error, "strerror", error)
        fail(
            PROGRAM,
            f"--port: cannot listen on {host}:{port}: {reason}; stop what listens there or give another --port",
        )
    return listener


if __name__ == "__main__":
    main()
