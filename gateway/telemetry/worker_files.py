"""Where workers of one gateway leave their snapshots for one another: a private folder of small files.

Each worker replaces its own file; the ledger, written by the supervisor alone, names the workers that run and holds the
counters of those that ended. Whoever wants the total reads the ledger, then the files that it names, then the
ledger again, and takes each worker either from its file or from the ledger, never from both or neither. Files are
replaced whole and found by name, so what is read is always some worker's complete snapshot and never an older one than
was read before: a counter cannot go backwards, whichever worker is asked. These calls block; keep them off the
event loop.
"""

from pathlib import Path
from typing import Any

import orjson

from specpilot.gateway.telemetry.merge import MetricsSnapshot, lasting, total

_LEDGER = "ledger.json"


def publish(folder: Path, worker: int, snapshot: MetricsSnapshot) -> None:
    """Replace the snapshot of `worker`."""
    replace_file(_path(folder, worker), snapshot)


def read_total(folder: Path) -> dict[str, Any]:
    """Return the snapshot of all workers, those that ended included. Raises `OSError` when the ledger is gone."""
    found: dict[int, MetricsSnapshot] = {}
    for worker in _read(folder / _LEDGER)["running"]:
        try:
            found[worker] = _read(_path(folder, worker))
        except FileNotFoundError:
            continue  # nothing published yet, or ended since: then the ledger has it now
    ledger = _read(folder / _LEDGER)
    return total([ledger["ended"], *(snapshot for worker, snapshot in found.items() if worker in ledger["running"])])


class Ledger:
    """The supervisor's account: who runs, and what those counted that no longer do.

    Every method raises `OSError` when it cannot write; the account itself is right all the same, and the next write
    that succeeds says it all.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[int] = []
        self._ended: MetricsSnapshot = {}
        self.write()

    def open(self, worker: int) -> None:
        """Take `worker` up; it may publish from now on."""
        self._running.append(worker)
        self.write()

    def close(self, worker: int) -> None:
        """Keep the counters of `worker`, which has ended, and forget the rest of it."""
        path = _path(self._folder, worker)
        self._running.remove(worker)
        if path.exists():
            self._ended = total([self._ended, lasting(_read(path))])
        self.write()
        path.unlink(missing_ok=True)

    def write(self) -> None:
        """Write the ledger anew. Also keeps it young: cleaners of temporary folders look for what is old."""
        ledger = {"running": self._running, "ended": self._ended}
        try:
            replace_file(self._folder / _LEDGER, ledger)
        except FileNotFoundError:
            self._folder.mkdir(mode=0o700)  # somebody cleaned up
            replace_file(self._folder / _LEDGER, ledger)


def _path(folder: Path, worker: int) -> Path:
    return folder / f"worker-{worker}.json"


def _read(path: Path) -> Any:
    return orjson.loads(path.read_bytes())


def replace_file(path: Path, value: Any) -> None:
    """Put `value` into the file at `path` as JSON, whole or not at all."""
    new = path.with_suffix(".new")
    new.write_bytes(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS))
    new.replace(path)
