"""Reads a setting that is a comma-separated choice from known names."""

from collections.abc import Collection

from specpilot.policy.settings import fail


def chosen(program: str, flag: str, text: str, known: Collection[str]) -> list[str]:
    """Return the names in `text`, in their order; ends the program with a clear line when one is not `known`."""
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in known:
            fail(program, f"{flag}: {name!r} is none of {', '.join(known)}")
    return names
