"""The parent of several workers as a program. It does not import the code of the workers."""

import logging
import sys
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from specpilot.gateway.process.listening import reserve
from specpilot.gateway.process.start_error import StartError
from specpilot.gateway.process.supervisor import Supervisor
from specpilot.gateway.process.worker_rules import WorkerRules
from specpilot.gateway.settings import PROGRAM, GatewaySettings
from specpilot.gateway.telemetry.worker_files import Ledger
from specpilot.policy import json_log
from specpilot.policy.clock import SystemClock
from specpilot.policy.settings import fail

STOP_MARGIN_S = 10.0
"""Seconds after the drain time-out before a worker that has not ended is killed."""


def run(settings: GatewaySettings, flags: Sequence[str]) -> None:
    """Run `settings.workers` workers until a signal. Ends the process with status 2 on bad settings."""
    log_format = "%(levelname)s %(name)s: %(message)s"
    if settings.log_format == "json":
        json_log.use(settings.log_level)
    else:
        logging.basicConfig(level=settings.log_level.upper(), stream=sys.stderr, format=log_format)
    try:
        reserved = reserve(settings.host, settings.port)
        admin = None
        if settings.admin_port is not None:
            admin = reserve(settings.host, settings.admin_port, "--admin-port")
            # The last flag counts, so with port 0 all workers share the port chosen here.
            flags = [*flags, "--admin-port", str(admin.getsockname()[1])]
    except StartError as error:
        fail(PROGRAM, *error.lines)
    try:
        folder = tempfile.TemporaryDirectory(prefix="specpilot-gateway-")
    except OSError as error:
        remedy = "point TMPDIR at a directory that can be written"
        fail(PROGRAM, f"--workers: the workers need a temporary directory: {error}; {remedy}")
    with folder as name, reserved, admin or nullcontext():
        rules = WorkerRules(settings.workers, settings.drain_timeout_s + STOP_MARGIN_S)
        try:
            ledger = Ledger(Path(name))
        except OSError as error:
            remedy = "make room there, or point TMPDIR at another directory"
            fail(PROGRAM, f"--workers: the workers' counts cannot be written to {name}: {error.strerror}; {remedy}")
        parts = (rules, reserved, Path(name), ledger, flags, SystemClock())
        status = Supervisor(*parts, is_tls=settings.tls_cert_file is not None).run()
    sys.exit(status)
