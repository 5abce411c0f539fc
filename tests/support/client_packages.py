"""Packages of clients that are not the project's own, each installed once into a folder that git ignores."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / ".specpilot" / "clients"
_INSTALL_S = 300.0


def node_folder(*packages: str) -> Path:
    """Return a folder whose `node_modules` has `packages`; skips the test where Node or a registry is out of reach."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("needs Node and npm")
    folder = _folder("node", packages)
    command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(folder), *packages]
    _install(folder, folder / "node_modules", command)
    return folder


def python_folder(*packages: str) -> Path:
    """Return a folder for `PYTHONPATH` with `packages`; skips the test where no index can be reached."""
    folder = _folder("python", packages)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _install(folder, folder / "site", [*command, "--target", str(folder / "site"), *packages])
    return folder / "site"


def _folder(kind: str, packages: tuple[str, ...]) -> Path:
    return FOLDER / "-".join((kind, *(package.replace("/", "_").replace("==", "-") for package in packages)))


def _install(folder: Path, made: Path, command: list[str]) -> None:
    if (folder / "ready").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_S, check=False)
    if done.returncode or not made.exists():
        pytest.skip(f"{command[0]} cannot install it: {done.stderr.strip()[-200:]}")
    (folder / "ready").touch()
