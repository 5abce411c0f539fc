"""The pure modules, imported in a fresh interpreter, bring in no framework.

The import linter checks what a module names itself, clocks and sockets included; this checks what comes along with it.
Clocks that come along are not looked for: the standard library imports `time` everywhere.
"""

import subprocess
import sys
import tomllib

from tests.support.stack import ROOT

FORBIDDEN = ("redis", "fastapi", "aiohttp", "vllm", "torch", "uvicorn", "prometheus_client")
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
[PURE] = [contract["source_modules"] for contract in CONTRACTS if contract["name"].startswith("What decides is pure")]


def modules_of(name: str) -> list[str]:
    """The modules of a package, or the module itself."""
    folder = ROOT.joinpath(*name.split("."))
    return [f"{name}.{path.stem}" for path in sorted(folder.glob("*.py"))] if folder.is_dir() else [name]


def test_what_decides_brings_in_no_framework() -> None:
    """Of several modules that bring one in, the first is named."""
    modules = [module for name in PURE for module in modules_of(name)]
    assert len(modules) > 50
    code = (
        "import sys; from importlib import import_module\n"
        f"for name in {modules!r}:\n"
        "    import_module(name)\n"
        f"    found = [other for other in {FORBIDDEN!r} if other in sys.modules]\n"
        "    assert not found, f'{name} brings in {found}'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
