"""One JSON line per request on standard error, without secrets and without bodies.

The event loop collects lines, and a thread writes them in batches, so that a slow reader of standard error delays no
request. When `BACKLOG` batches wait for the reader, further lines are dropped and counted.
"""

import queue
import threading
from collections.abc import Iterator
from typing import IO, Final

BACKLOG: Final = 64
"""Batches, of 0.1 s each, that may wait for a slow reader. With a larger number fewer lines are lost, and more memory
is used."""


class AccessLog:
    """Writes to `stream`; does not write when it is `None`.

    If several processes share the stream, `atomic_bytes` is the size up to which a pipe keeps one write together. Then
    only whole lines up to that size are written at once, so that lines of different processes never mix.
    """

    def __init__(self, stream: IO[bytes] | None, atomic_bytes: int | None = None) -> None:
        self._atomic_bytes = atomic_bytes
        self._lines: list[bytes] = []
        self._batches: queue.Queue[bytes | None] = queue.Queue(BACKLOG)
        self._thread: threading.Thread | None = None
        self.is_on = stream is not None
        self.dropped = 0
        if stream is not None:
            self._thread = threading.Thread(target=self._write, args=(stream,), name="access-log", daemon=True)
            self._thread.start()

    def add(self, line: bytes) -> None:
        """Add the line of one request, as JSON."""
        self._lines.append(line)

    def flush(self) -> None:
        """Pass the collected lines to the thread. Never blocks."""
        if not self._lines:
            return
        lines, self._lines = self._lines, []
        try:
            self._batches.put_nowait(b"\n".join(lines) + b"\n")
        except queue.Full:
            self.dropped += len(lines)

    def close(self, timeout_s: float = 1.0) -> None:
        """Write the remaining lines, for at most `timeout_s`."""
        self.flush()
        if self._thread is not None:
            try:
                self._batches.put(None, timeout=timeout_s)
            except queue.Full:
                return
            self._thread.join(timeout_s)

    def _write(self, stream: IO[bytes]) -> None:
        while (batch := self._batches.get()) is not None:
            for part in (batch,) if self._atomic_bytes is None else parts_of(batch, self._atomic_bytes):
                try:
                    stream.write(part)
                    stream.flush()
                except OSError:  # a full disk, a pipe without a reader: later writes may succeed
                    self.dropped += part.count(b"\n")
                except ValueError:
                    return  # the stream was closed


def parts_of(lines: bytes, limit_bytes: int) -> Iterator[bytes]:
    """Yield `lines` in parts of whole lines, each within `limit_bytes` unless one line alone is longer."""
    start = 0
    while len(lines) - start > limit_bytes:
        end = lines.rfind(b"\n", start, start + limit_bytes) + 1 or lines.index(b"\n", start) + 1
        yield lines[start:end]
        start = end
    if start < len(lines):
        yield lines[start:]
