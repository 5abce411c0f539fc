"""Compiles the few lines of C that measurements need, when they need them."""

import shutil
import subprocess
from pathlib import Path

_SOURCES = Path(__file__).resolve().parent


def build(name: str, output: Path, *flags: str) -> Path:
    """Compile `name`.c into `output` and return that. Raises `FileNotFoundError` without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise FileNotFoundError("no C compiler (cc or gcc) was found; install one")
    subprocess.run([compiler, "-O2", "-Wall", "-o", str(output), str(_SOURCES / f"{name}.c"), *flags], check=True)
    return output
