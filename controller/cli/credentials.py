"""Shared by the commands `token`, `key` and `freeze`: durations, and the output of a new secret."""

from typing import Annotated, Any

from specpilot.controller.cli import text
from specpilot.controller.cli.words import readable
from specpilot.policy.clock import utc


def expiry_body(duration: str | None) -> dict[str, Any]:
    """Return the body's part for `--expires-in`: `none` is for ever; without the flag it is empty."""
    if duration is None:
        return {}
    return {"expires_at": None} if duration == "none" else {"expires_in_s": text.duration_s(duration)}


Duration = Annotated[str, readable(text.duration_s)]
ExpiresIn = Annotated[str, readable(expiry_body)]
"""The flags that state a time from now on."""


def expiry(item: dict[str, Any]) -> str:
    """Return the expiry as text."""
    return "does not expire" if item["expires_at"] is None else f"expires {utc(item['expires_at'])}"


def secret(made: dict[str, Any], field: str) -> None:
    """Print a new secret alone on standard output, so that it can be piped; its id and expiry on standard error."""
    text.note(f"{made.get('token_id') or made['key_id']}: {expiry(made)}; this is shown only once:")
    text.say(made[field])
