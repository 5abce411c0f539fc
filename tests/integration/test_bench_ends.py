"""A measurement that receives a signal to end stops the processes that it started."""

import signal
import socket
import subprocess
import sys
from contextlib import closing

from tests.support.patience import PATIENCE_S
from tests.support.stack import free_port, until

TERMINATED = 128 + signal.SIGTERM


def test_a_terminated_measurement_leaves_nothing_behind() -> None:
    port = free_port()

    def is_listening() -> bool:
        with closing(socket.socket()) as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    command = [sys.executable, "-m", "specpilot.cli", "bench", "gateway", "--port", str(port)]
    measurement = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(is_listening)
        measurement.send_signal(signal.SIGTERM)
        assert measurement.wait(PATIENCE_S) == TERMINATED
        assert not is_listening()
    finally:
        measurement.kill()
        measurement.wait()
