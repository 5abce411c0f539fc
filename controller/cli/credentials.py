"""Shared by the commands `token`, `key` and `freeze`: durations, and the output of a new secret."""

import sys
from typing import Any

from specpilot.controller.cli import text
from specpilot.policy.settings import fail


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
