"""The output of an unattended system: one JSON object a line on standard output, for its own lines and its parts'.

A line of a part that is a JSON object, such as a line of the gateway's access log, keeps its fields. `time` (ISO 8601,
UTC) and `part` are added; every other line becomes `message`. Nothing is kept in files, so nothing grows.
"""

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import TextIO

LINE_LIMIT = 16_384
"""Characters of a part's line that are kept: what is longer is cut, so that one line cannot take much memory."""
SUPERVISOR = "specpilot"


class Journal:
    """Writes lines to `out`, from any thread."""

    def __init__(self, out: TextIO, now: Callable[[], float]) -> None:
        self._out = out
        self._now = now
        self._lock = threading.Lock()

    def say(self, message: str) -> None:
        """Write a line of the supervisor."""
        self.add(SUPERVISOR, message)

    def add(self, part: str, line: str) -> None:
        """Write one line of `part`."""
        if line.strip():
            text = json.dumps(worded(part, line[:LINE_LIMIT], self._now()))  # ASCII, for any encoding of `out`
            with self._lock, suppress(OSError):  # a full disk, a pipe without a reader: later writes may succeed
                self._out.write(text + "\n")
                self._out.flush()


def worded(part: str, line: str, now: float) -> dict[str, object]:
    """Return the JSON line for one line of `part` at Unix time `now`."""
    fields: object = None
    if line.startswith("{"):
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            fields = None
    head = {"time": datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds"), "part": part}
    return {**head, **(fields if isinstance(fields, dict) else {"message": line.rstrip()})}
