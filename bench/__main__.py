"""`specpilot bench`: a table of measurements, each the `main(arguments)` of its module."""

import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from types import FrameType

MEASUREMENTS = {
    "sweep": (
        "specpilot.bench.sweep.command",
        "no speculation, EAGLE-3, P-EAGLE at each K and adaptive K, by load and text; also on endpoints by URL",
    ),
    "rate": ("specpilot.bench.sweep.rate_command", "the highest request rate at which each of those arms keeps an SLO"),
    "agreement": (
        "specpilot.bench.agreement.command",
        "whether the figures of sweep agree with those of vllm bench serve on the same server",
    ),
    "demo": (
        "specpilot.bench.control.demo",
        "a shifting load against the running system: adaptive K beside every static K",
    ),
    "gateway": (
        "specpilot.bench.gateway.command",
        "the gateway's cost beside a direct connection, a plain proxy and others that you name",
    ),
    "gateway-faults": (
        "specpilot.bench.gateway.faults",
        "effects on clients while engines, Redis, gateways or other clients fail",
    ),
    "gateway-hostile": (
        "specpilot.bench.gateway.hostile",
        "the longest stall of the gateway's loop and the memory that hostile clients cause",
    ),
    "gateway-soak": (
        "specpilot.bench.gateway.soak",
        "a gateway under all kinds of load at once, checked for wrong answers and leaks",
    ),
    "control": ("specpilot.bench.control.command", "the control law beside static K and a table tuned by hand"),
    "faults": ("specpilot.bench.control.faults", "effects on clients while a part of the running system fails"),
    "alerts": (
        "specpilot.bench.control.alerts",
        "each alert of deploy/prometheus under its fault, or none over a load",
    ),
    "rolling": (
        "specpilot.bench.fleet.rolling",
        "requests that fail while every part of a running system is replaced under load, Redis failing over too",
    ),
    "sizing": (
        "specpilot.bench.fleet.sizing",
        "the capacity of Redis, one controller and one gateway core, on a thousand simulated engines",
    ),
    "unattended": (
        "specpilot.bench.fleet.unattended",
        "requests that fail on one machine behind a managed endpoint while every part is killed once",
    ),
    "adapter": ("specpilot.bench.adapter.command", "the adapter's cost and gain inside the engine"),
    "gpu-check": (
        "specpilot.bench.gpu_check.command",
        "whether the engine adapter is right and fast on this machine's GPU: one report; a second call goes on",
    ),
    "inflate": (
        "specpilot.bench.inflate.command",
        "a pair of a real model's size with the text of the demo pair, for a GPU: nothing is downloaded",
    ),
    "soak": (
        "specpilot.bench.adapter.soak",
        "a real engine under all kinds of load at once, checked for errors and leaks",
    ),
}


def main(arguments: Sequence[str]) -> None:
    """Run the measurement that the first argument names."""
    if not arguments or arguments[0] not in MEASUREMENTS:
        rows = "\n".join(f"  {name:<16}{text}" for name, (_, text) in MEASUREMENTS.items())
        sys.stderr.write(f"usage: specpilot bench MEASUREMENT [FLAG ...]\n\n{rows}\n")
        sys.exit(0 if arguments and arguments[0] in ("-h", "--help") else 2)
    signal.signal(signal.SIGTERM, _end)
    import_module(MEASUREMENTS[arguments[0]][0]).main(arguments[1:])


def _end(number: int, _frame: FrameType | None) -> None:
    """End as Ctrl-C does, so that what a measurement started is stopped too."""
    sys.exit(128 + number)


if __name__ == "__main__":
    main(sys.argv[1:])
