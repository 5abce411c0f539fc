"""Shared by the commands `token`, `key` and `freeze`: arguments, durations, and the output of a new secret."""

import sys
from collections.abc import Sequence
from typing import Any

from specpilot.controller.cli import text
from specpilot.policy.settings import fail

HELP = frozenset({"-h", "--help"})


def parsed(
    arguments: Sequence[str] | None, commands: dict[str, bool], program: str, usage: str
) -> tuple[str, str, list[str]]:
    """Return the command, its name (empty when it takes none), and the flags."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in HELP:
        sys.stdout.write(usage)
        sys.exit(0 if words else 2)
    command = words.pop(0)
    if command not in commands:
        fail(program, f"there is no such command; choose one of {', '.join(commands)}")
    if not commands[command]:
        return command, "", words
    if words and words[0] in HELP:
        sys.stdout.write(usage)
        sys.exit(0)
    if not words or words[0].startswith("-"):
        fail(program, f"{command}: give the name or id, as in {usage}")
    return command, words.pop(0), words


def seconds(program: str, flag: str, duration: str) -> float:
    """Return the seconds of a duration such as 90d; ends the program with status 2 for anything else."""
    duration_s = text.duration_s(duration)
    if duration_s is None:
        fail(program, f"{flag}: {duration!r} is no duration; give 90s, 10m, 12h or 90d")
    return duration_s


def expiry_body(program: str, duration: str | None) -> dict[str, Any]:
    """Return the body's part for `--expires-in`: `none` is for ever; without the flag it is empty."""
    if duration is None:
        return {}
    return {"expires_at": None} if duration == "none" else {"expires_in_s": seconds(program, "--expires-in", duration)}


def expiry(item: dict[str, Any]) -> str:
    """Return the expiry as text."""
    return "does not expire" if item["expires_at"] is None else f"expires {text.moment(item['expires_at'])}"


def secret(made: dict[str, Any], field: str) -> None:
    """Print a new secret alone on standard output, so that it can be piped; its id and expiry on standard error."""
    sys.stderr.write(
        f"{text.printable(made.get('token_id') or made['key_id'])}: {expiry(made)}; this is shown only once:\n"
    )
    sys.stdout.write(f"{made[field]}\n")
