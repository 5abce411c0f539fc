"""The workers' tallies, in a private folder of small files. The calls block: keep them off the event loop.

Each worker replaces its own file. The supervisor alone writes the ledger, which names the running workers and holds the
counters of those that ended. A reader of the total reads the ledger, then the files that it names, then the ledger
again, and takes each worker either from its file or from the ledger, never from both or neither. Files are replaced as
a whole and read by name, so a reader always gets a complete tally, never an older one than before. So a counter
cannot decrease, whichever worker answers.
"""

from pathlib import Path
from typing import Any

import orjson

from specpilot.gateway.telemetry.merge import Tally, lasting, total

_LEDGER = "ledger.json"


def publish(folder: Path, worker: int, tally: Tally) -> None:
    """Replace the tally of `worker`."""
    replace_file(_path(folder, worker), tally)


def read_total(folder: Path) -> dict[str, Any]:
    """Return the tally of all workers, ended ones included. Raises `OSError` when the ledger is gone."""
    tallies: dict[int, Tally] = {}
    for worker in _read(folder / _LEDGER)["running"]:
        try:
            tallies[worker] = _read(_path(folder, worker))
        except FileNotFoundError:
            continue  # nothing published yet; or the worker has ended, and is in the ledger now
    ledger = _read(folder / _LEDGER)
    running = [tally for worker, tally in tallies.items() if worker in ledger["running"]]
    return total([ledger["ended"], *running])


class Ledger:
    """The supervisor's account: the running workers, and the counters of ended ones.

    Every method raises `OSError` when it cannot write. The account in memory stays correct, and the next successful
    write has all of it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[int] = []
        self._ended: Tally = {}
        self.write()

    def open(self, worker: int) -> None:
        """Add `worker`, which may publish from now on."""
        self._running.append(worker)
        self.write()

    def close(self, worker: int) -> None:
        """Keep the counters of `worker`, which has ended, and drop its other numbers."""
        path = _path(self._folder, worker)
        self._running.remove(worker)
        if path.exists():
            self._ended = total([self._ended, lasting(_read(path))])
        self.write()
        path.unlink(missing_ok=True)

    def write(self) -> None:
        """Write the ledger. Repeated writes keep the file young: cleaners of temporary folders remove old files."""
        ledger = {"running": self._running, "ended": self._ended}
        try:
            replace_file(self._folder / _LEDGER, ledger)
        except FileNotFoundError:
            self._folder.mkdir(mode=0o700)  # a cleaner removed the folder
            replace_file(self._folder / _LEDGER, ledger)


def _path(folder: Path, worker: int) -> Path:
    return folder / f"worker-{worker}.json"


def _read(path: Path) -> Any:
    return orjson.loads(path.read_bytes())


def replace_file(path: Path, value: Any) -> None:
    """Write `value` to the file at `path` as JSON, whole or not at all."""
    new = path.with_suffix(".new")
    new.write_bytes(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS))
    new.replace(path)
