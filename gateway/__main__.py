"""`python -m gateway` and `specpilot gateway`."""

import sys
from collections.abc import Sequence

from gateway.app import PROGRAM, run
from gateway.settings import GatewaySettings
from policy.settings import load


def main(arguments: Sequence[str]) -> None:
    """Run the gateway with `arguments`, the program's name left out."""
    run(load(GatewaySettings, PROGRAM, arguments))


if __name__ == "__main__":
    main(sys.argv[1:])
