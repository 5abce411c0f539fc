"""The parent of several workers as a program. It does not import the code of the workers."""

import asyncio
import sys
from collections.abc import Sequence
from contextlib import nullcontext

from specpilot.gateway.process.listening import reserve
from specpilot.gateway.process.start_error import StartError
from specpilot.gateway.process.supervisor import Supervisor
from specpilot.gateway.process.worker_rules import WorkerRules
from specpilot.gateway.settings import PROGRAM, GatewaySettings
from specpilot.policy.clock import SystemClock
from specpilot.policy.settings import fail

STOP_MARGIN_S = 10.0
"""Seconds after the drain time-out before a worker that has not ended is killed."""


def run(settings: GatewaySettings, flags: Sequence[str]) -> None:
    """Run `settings.workers` workers until a signal. Ends the process with status 2 on bad settings."""
    settings.open_log()
    try:
        reserved = reserve(settings.host, settings.port)
        admin = None
        if settings.admin_port is not None:
            admin = reserve(settings.host, settings.admin_port, "--admin-port")
            # The last flag counts, so with port 0 all workers share the port chosen here.
            flags = [*flags, "--admin-port", str(admin.getsockname()[1])]
    except StartError as error:
        fail(PROGRAM, *error.lines)
    with reserved, admin or nullcontext():
        rules = WorkerRules(settings.workers, settings.drain_timeout_s + STOP_MARGIN_S)
        supervisor = Supervisor(rules, reserved, flags, SystemClock(), is_tls=settings.tls_cert_file is not None)
        status = asyncio.run(supervisor.run())
    sys.exit(status)
