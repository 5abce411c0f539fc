"""Lines of a running measurement on standard output."""

import sys


def say(text: str, end: str = "\n") -> None:
    """Print `text` at once. On a terminal it replaces the line of progress, if one is shown."""
    sys.stdout.write(("\r\033[K" if sys.stdout.isatty() else "") + text + end)
    sys.stdout.flush()
