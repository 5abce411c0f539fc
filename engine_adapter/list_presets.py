"""`specpilot presets`: lists the published pairs of `specpilot engine --preset NAME`, or shows one in full."""

import shlex
import sys
from collections.abc import Sequence

from specpilot.engine_adapter.errors import InvalidSettingsError
from specpilot.engine_adapter.presets import PRESETS, Preset, preset
from specpilot.policy.settings import fail

PROGRAM = "specpilot presets"
_USAGE = f"usage: {PROGRAM} [NAME]\n\nLists the pairs of target and draft head that have a preset, or one in full.\n"


def main(arguments: Sequence[str]) -> None:
    """Print the table, or one preset."""
    if arguments and arguments[0] in ("-h", "--help"):
        sys.stdout.write(_USAGE)
        return
    if len(arguments) > 1:
        fail(PROGRAM, f"takes one name, not {len(arguments)}")
    if not arguments:
        sys.stdout.write(table())
        return
    try:
        sys.stdout.write(in_full(preset(arguments[0])))
    except InvalidSettingsError as error:
        fail(PROGRAM, *error.faults)


def table() -> str:
    """Return a line for each preset."""
    rows = [("NAME", "METHOD", "K", "TARGET", "HEAD")]
    rows += [(item.name, item.method, _known(item.k), item.target, item.head or "-") for item in PRESETS]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]]) for row in rows
    ]
    return "\n".join(lines) + "\n\nspecpilot presets NAME shows one in full. None of them was run by the project.\n"


def in_full(item: Preset) -> str:
    """Return all facts about a preset, and the command that starts it."""
    needs = "" if item.k is not None else " --k-max K"
    needs += "" if item.head is not None else " --drafter HEAD"
    rows = {
        "target": item.target,
        "head": item.head or "none published",
        "method": item.method,
        "K served": _known(item.k),
        "trained for K": _known(item.k_trained),
        "flags for vLLM": shlex.join(item.flags) or "none",
        "limits": item.limits or "none known",
        "start": f"specpilot engine --preset {item.name}{needs}",
    }
    return "".join(f"{name + ':':<16}{value}\n" for name, value in rows.items())


def _known(value: int | None) -> str:
    return "-" if value is None else str(value)


if __name__ == "__main__":
    main(sys.argv[1:])
