"""`specpilot bench`: a table of measurements, each the `main(arguments)` of its module."""

import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from types import FrameType

MEASUREMENTS = {
    "demo": ("bench.demo", "a shifting load against the running system: adaptive K beside every static K"),
    "gateway": ("bench.gateway", "what the gateway costs, beside nothing, a plain proxy and others that you name"),
    "gateway-faults": ("bench.gateway_faults", "what clients notice while engines, Redis, gateways or clients fail"),
    "gateway-soak": ("bench.gateway_soak", "a gateway under everything at once, watched for wrong answers and leaks"),
    "control": ("bench.control", "the control law beside static K and a table tuned by hand"),
    "faults": ("bench.faults", "what users notice while a part of the running system fails"),
    "adapter": ("bench.adapter", "what the adapter costs and gains inside the engine"),
    "soak": ("bench.soak", "a real engine under everything at once, watched for errors and leaks"),
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
