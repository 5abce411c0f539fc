"""`python -m specpilot.bench.control.partial_controller IDEAS ...`: a controller without ideas of its law.

IDEAS are names of `bench.ablations`, by commas; the controller's flags follow.
"""

import sys
from unittest.mock import patch

from specpilot.bench.ablations import without
from specpilot.controller import __main__ as controller
from specpilot.controller import app


def main(arguments: list[str]) -> None:
    """Run the controller."""
    with without(*arguments[0].split(",")) as tuning, patch.object(app, "Tuning", lambda: tuning):
        controller.main(arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
