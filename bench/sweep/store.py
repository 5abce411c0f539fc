"""The folder of a sweep: its settings (`sweep.json`) and one file for each measured cell, written atomically.

A cell is written to a temporary file and renamed, so an interrupted sweep leaves only whole cells, and the same command
goes on where it stopped. A folder with cells of other settings is rejected.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specpilot.bench.sweep.plan import Cell
from specpilot.policy.settings import fail


class Store:
    """Cells on disk, in `folder`."""

    def __init__(self, program: str, folder: Path, settings: Mapping[str, Any]) -> None:
        """Open or make the folder for a sweep with `settings`; ends `program` when it cannot be one."""
        self.folder = folder
        path = folder / "sweep.json"
        try:
            (folder / "cells").mkdir(parents=True, exist_ok=True)
            known = json.loads(path.read_text()) if path.exists() else {}
            differs = sorted(name for name in known.keys() & settings.keys() if known[name] != settings[name])
            if differs and any((folder / "cells").iterdir()):
                fail(
                    program,
                    f"--out: {folder} holds cells that were measured with other settings ({', '.join(differs)}); "
                    "name another folder with --out, or remove this one",
                )
            _write(path, known | dict(settings))
        except OSError as error:
            fail(program, f"--out: {error.filename}: {error.strerror}")

    def has(self, cell: Cell) -> bool:
        """Whether the cell was measured."""
        return self._path(cell).exists()

    def put(self, cell: Cell, figures: Mapping[str, Any]) -> None:
        """Keep a measured cell: its coordinates, and its figures by the client's names."""
        place = {
            "label": cell.name,
            "arm": cell.arm.name,
            "system": cell.arm.system,
            "k": cell.arm.k,
            "dataset": cell.data_set,
            "load": cell.load.name,
            "repetition": cell.repetition,
        }
        _write(self._path(cell), {**figures, **place})

    def _path(self, cell: Cell) -> Path:
        return self.folder / "cells" / f"{cell.name}.json"


def cells_in(folder: Path) -> list[dict[str, Any]]:
    """Return the figures of every cell that was measured into `folder`."""
    return [json.loads(path.read_text()) for path in sorted((folder / "cells").glob("*.json"))]


def _write(path: Path, value: Mapping[str, Any]) -> None:
    beside = path.with_name(path.name + ".part")
    beside.write_text(json.dumps(value, indent=1) + "\n")
    beside.replace(path)
