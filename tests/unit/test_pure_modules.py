"""Each pure module, imported in a fresh interpreter, brings in no framework.

The import linter checks what a module names itself, clocks and sockets included; this checks what comes along with it.
Clocks that come along are not looked for: the standard library imports `time` everywhere.
"""

import subprocess
import sys
import tomllib

import pytest

from tests.support.stack import ROOT

FORBIDDEN = ("redis", "fastapi", "aiohttp", "vllm", "torch", "uvicorn", "prometheus_client")
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
[PURE] = [contract["source_modules"] for contract in CONTRACTS if contract["name"].startswith("What decides is pure")]


def modules_of(name: str) -> list[str]:
    """The modules of a package, or the module itself."""
    folder = ROOT.joinpath(*name.split("."))
    return [f"{name}.{path.stem}" for path in sorted(folder.glob("*.py"))] if folder.is_dir() else [name]


@pytest.mark.parametrize("name", PURE)
def test_what_decides_brings_in_no_framework(name: str) -> None:
    modules = modules_of(name)
    assert modules
    code = f"import sys, {', '.join(modules)}; print([name for name in {FORBIDDEN!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
