"""`python -m gateway` and `specpilot gateway`."""

import sys
from collections.abc import Sequence
from importlib import import_module

from specpilot.gateway.settings import PROGRAM, GatewaySettings
from specpilot.policy.settings import load


def main(arguments: Sequence[str]) -> None:
    """Run the gateway with `arguments`, without the program's name.

    The parent of several workers serves no request, so it does not import the code for that.
    """
    settings = load(GatewaySettings, PROGRAM, arguments)
    if settings.workers == 1:
        import_module("specpilot.gateway.app").run(settings)
    else:
        import_module("specpilot.gateway.supervisor_program").run(settings, arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
