"""What decides touches no clock, socket or framework: seen in a fresh interpreter and in the modules' own imports."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "controller"
PURE = (
    "change", "cost", "decide", "estimate", "explore", "exposition", "facts", "guard", "load", "memory", "narrate",
    "nnls", "observation", "pilot", "pools", "probe", "propose", "record", "rows", "steer", "tuning",
)  # fmt: skip
BANNED = {"asyncio", "time", "random", "os", "redis", "fastapi", "vllm", "logging", "threading", "aiohttp", "socket"}


@pytest.mark.parametrize("name", PURE)
def test_a_pure_module_names_no_effect(name: str) -> None:
    tree = ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {item.name.split(".")[0] for item in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported.add(node.module.split(".")[0])
            if node.module.startswith("controller."):
                assert node.module.removeprefix("controller.") in PURE
    assert not imported & BANNED


def test_the_law_loads_no_framework() -> None:
    banned = ("redis", "fastapi", "aiohttp", "uvicorn", "prometheus_client")
    code = f"import sys, controller.pilot; print([name for name in {banned!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
