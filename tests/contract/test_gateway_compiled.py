"""`make test-compiled` tests what is compiled, also in the processes that tests start; other runs, what is plain."""

import ast
import os
import socket
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests.contract.conftest import StartProgram
from tests.support.gateway_client import call
from tests.support.gateway_workers import children

ROOT = Path(__file__).resolve().parents[2]
COMPILED = ROOT / "build" / "compiled"
IS_COMPILED = str(COMPILED) in os.environ.get("PYTHONPATH", "").split(os.pathsep)


def hot_path() -> list[str]:
    """The names of the modules that `setup.py` compiles."""
    tree = ast.parse((ROOT / "setup.py").read_text())
    [paths] = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "HOT_PATH"
    ]
    return [path.removesuffix(".py").replace("/", ".") for path in paths]


def is_compiled(pid: int) -> bool:
    """Whether the process runs what is compiled: one library with all of it, and at least one module's way into it.

    The library loads the other modules itself. A package is one folder, so no module comes from elsewhere.
    """
    mapped = {line.split()[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if line.endswith(".so")}
    ours = {Path(path).relative_to(COMPILED) for path in mapped if Path(path).is_relative_to(COMPILED)}
    has_library = any("__mypyc" in path.name for path in ours)
    has_way_in = any(path.parts[:2] == ("specpilot", "gateway") for path in ours)
    assert has_library == has_way_in
    return has_library


@pytest.mark.parametrize("module", hot_path())
def test_here(module: str) -> None:
    path = import_module(module).__file__
    assert path is not None
    assert path.endswith(".so" if IS_COMPILED else ".py")
    assert Path(path).is_relative_to(COMPILED) == IS_COMPILED


def test_in_a_process_that_runs_code_or_a_module() -> None:
    said = "import specpilot.gateway.relay.relay as r; print(r.__file__)"
    done = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == import_module("specpilot.gateway.relay.relay").__file__
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-v", "-m", "specpilot.gateway", "--engine", "http://127.0.0.1:9", "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    sources = [f"{module.removeprefix('specpilot.').replace('.', '/')}.py" for module in hot_path()]
    assert any(str(import_module(module).__file__) in done.stderr for module in hot_path())
    assert any(source in done.stderr for source in sources) == (not IS_COMPILED)
    assert f"127.0.0.1:{port}" in done.stderr


async def test_in_a_gateway(start_program: StartProgram) -> None:
    program = await start_program()
    assert (await call(program.port)).status == 200
    assert is_compiled(program.process.pid) == IS_COMPILED


async def test_in_workers_and_their_parent(start_workers: StartProgram) -> None:
    program = await start_workers()
    workers = children(program)
    assert len(workers) == 2
    assert [is_compiled(pid) for pid in (program.process.pid, *workers)] == [IS_COMPILED] * 3
