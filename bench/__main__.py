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
    "pareto": (
        "specpilot.bench.sweep.pareto",
        "a sweep drawn as throughput over tokens per second and user: adaptive K, with and without a goal, and each K",
    ),
    "demo": (
        "specpilot.bench.demo.command",
        "a shifting load against the running system: adaptive K beside every static K",
    ),
    "gateway": (
        "specpilot.bench.gateway.command",
        "the gateway's cost beside a direct connection, a plain proxy and others that you name",
    ),
    "gateway-hostile": (
        "specpilot.bench.gateway.hostile",
        "the longest stall of the gateway's loop and the memory that hostile clients cause",
    ),
    "gateway-soak": (
        "specpilot.bench.gateway.soak",
        "a gateway under all kinds of load at once, checked for wrong answers and leaks",
    ),
    "adapter": ("specpilot.bench.adapter.command", "the adapter's cost and gain inside the engine"),
    "gpu-check": (
        "specpilot.bench.gpu_check.command",
        "whether the engine adapter is right and fast on this machine's GPU: one report; a second call goes on",
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
