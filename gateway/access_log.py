"""One JSON line per request, on standard error, without secrets and without bodies.

Lines are gathered on the event loop and written in batches by a thread, so that a slow reader of standard error
delays no request; when the reader falls behind by `BACKLOG` batches, lines are dropped and counted.
"""

import queue
import threading
from collections.abc import Mapping
from typing import IO, Any

import orjson

BACKLOG = 64


class AccessLog:
    """Writes to `stream`, or nowhere when it is `None`."""

    def __init__(self, stream: IO[bytes] | None) -> None:
        self._stream = stream
        self._lines: list[bytes] = []
        self._batches: queue.Queue[bytes | None] = queue.Queue(BACKLOG)
        self._thread: threading.Thread | None = None
        self.is_on = stream is not None
        self.dropped = 0
        if stream is not None:
            self._thread = threading.Thread(target=self._write, args=(stream,), name="access-log", daemon=True)
            self._thread.start()

    def add(self, fields: Mapping[str, Any]) -> None:
        """Note one request."""
        self._lines.append(orjson.dumps(fields))

    def flush(self) -> None:
        """Hand over what has been gathered. Never blocks."""
        if not self._lines:
            return
        lines, self._lines = self._lines, []
        try:
            self._batches.put_nowait(b"\n".join(lines) + b"\n")
        except queue.Full:
            self.dropped += len(lines)

    def close(self, timeout_s: float = 1.0) -> None:
        """Write what is left, waiting at most `timeout_s`."""
        self.flush()
        if self._thread is not None:
            try:
                self._batches.put(None, timeout=timeout_s)
            except queue.Full:
                return
            self._thread.join(timeout_s)

    def _write(self, stream: IO[bytes]) -> None:
        while (batch := self._batches.get()) is not None:
            try:
                stream.write(batch)
                stream.flush()
            except (OSError, ValueError):
                return  # nobody listens any more
