"""The folder of a sweep: its settings (`sweep.json`) and one file for each measured cell, written atomically.

A cell is written to a temporary file and renamed, so an interrupted sweep leaves only whole cells, and the same command
goes on where it stopped. A folder with cells of other settings is rejected.
"""

import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specpilot.bench.sweep.plan import Cell
from specpilot.policy.settings import fail


class OtherSweepError(ValueError):
    """The folder holds cells of other settings."""


def open_store(program: str, folder: Path, question: Mapping[str, Any]) -> "Store":
    """Return the store of a folder for `question`; ends `program` when it cannot be one."""
    try:
        return Store(folder, question)
    except OtherSweepError as error:
        fail(program, f"--out: {error}")
    except OSError as error:
        fail(program, f"--out: {error.filename}: {error.strerror}")


class Store:
    """Cells on disk, in `folder`."""

    def __init__(self, folder: Path, question: Mapping[str, Any]) -> None:
        """Open or make the folder for a sweep with `question`; raises `OtherSweepError` or `OSError`."""
        self.folder = folder
        self._cells = folder / "cells"
        self._cells.mkdir(parents=True, exist_ok=True)
        question = dict(question)
        path = folder / "sweep.json"
        if path.exists():
            known = json.loads(path.read_text())  # a key of only one of both is no difference
            differs = sorted(name for name in known.keys() & question.keys() if known[name] != question[name])
            if differs and any(self._cells.glob("*.json")):
                raise OtherSweepError(
                    f"{folder} holds cells that were measured with other settings ({', '.join(differs)}); "
                    "name another folder with --out, or remove this one"
                )
            question = known | question
        _write(path, question)

    def has(self, cell: Cell) -> bool:
        """Whether the cell was measured."""
        return self._path(cell).exists()

    def put(self, cell: Cell, figures: Mapping[str, Any]) -> None:
        """Keep a measured cell."""
        _write(self._path(cell), figures)

    def cells(self) -> list[dict[str, Any]]:
        """Return the figures of every cell in the folder."""
        return cells_in(self.folder)

    def _path(self, cell: Cell) -> Path:
        return self._cells / f"{cell.name}.json"


def cells_in(folder: Path) -> list[dict[str, Any]]:
    """Return the figures of every cell that was measured into `folder`."""
    return [json.loads(path.read_text()) for path in sorted((folder / "cells").glob("*.json"))]


def place_of(cell: Cell) -> dict[str, Any]:
    """Return the coordinates of a cell, as in its file."""
    return {
        "label": cell.name,
        "arm": cell.arm.name,
        "system": cell.arm.system,
        "k": cell.arm.k,
        "dataset": cell.data_set,
        "max_concurrency": cell.load.concurrency,
        "request_rate": cell.load.request_rate if cell.load.request_rate is not None else "inf",
        "repetition": cell.repetition,
        "date": time.strftime("%Y%m%d-%H%M%S"),
    }


def digest(conversations: object) -> str:
    """Return a short digest of the conversations."""
    return hashlib.sha256(repr(conversations).encode()).hexdigest()[:16]


def _write(path: Path, value: Mapping[str, Any]) -> None:
    beside = path.with_name(path.name + ".part")
    with beside.open("w") as file:
        json.dump(value, file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
