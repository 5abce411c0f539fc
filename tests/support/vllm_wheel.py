"""The source text of vLLM: the one that is installed, or that in a wheel, which need not run here."""

import os
import zipfile
from importlib import util
from pathlib import Path

from specpilot.engine_adapter.vllm.source import Read

FOLDER_VARIABLE = "VLLM_WHEELS"


def wheels() -> list[Path]:
    """Return the wheels of vLLM in the folder that `VLLM_WHEELS` names; none when it is not set."""
    folder = os.environ.get(FOLDER_VARIABLE)
    return sorted(Path(folder).glob("vllm*.whl")) if folder else []


def minor(wheel: Path) -> str:
    """Return `0.33` for `vllm-0.33.0-...whl`."""
    return ".".join(wheel.name.split("-")[1].split(".")[:2])


def wheel_reader(wheel: Path) -> Read:
    """Return a reader of the files in the package `vllm` of `wheel`."""
    archive = zipfile.ZipFile(wheel)
    names = frozenset(archive.namelist())

    def read(path: str) -> str | None:
        return archive.read(f"vllm/{path}").decode() if f"vllm/{path}" in names else None

    return read


def installed_reader() -> Read:
    """Return a reader of the files of the vLLM that is installed."""
    found = util.find_spec("vllm")
    assert found is not None
    assert found.origin is not None
    folder = Path(found.origin).parent

    def read(path: str) -> str | None:
        return (folder / path).read_text() if (folder / path).is_file() else None

    return read
