"""A worker, started by the supervisor.

`python -m specpilot.gateway.worker_program NUMBER LISTENER CHANNEL [FLAG ...]`

`LISTENER` and `CHANNEL` are inherited file descriptors; the flags are those of `specpilot gateway`.
"""

import socket
import sys
from collections.abc import Sequence

from specpilot.gateway.app import run
from specpilot.gateway.process.worker import Worker
from specpilot.gateway.settings import PROGRAM, GatewaySettings
from specpilot.policy.settings import load


def main(arguments: Sequence[str]) -> None:
    """Serve until the supervisor or a signal ends it."""
    number, listener, channel, *flags = arguments
    place = Worker(int(number), socket.socket(fileno=int(listener)), socket.socket(fileno=int(channel)))
    run(load(GatewaySettings, PROGRAM, flags), place)


if __name__ == "__main__":
    main(sys.argv[1:])
