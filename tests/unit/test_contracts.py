"""Every import contract of pyproject.toml is broken by a violation of it, planted in a copy of the tree.

That the tree keeps them is checked by `make lint`.
"""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.support.stack import ROOT

FOLDERS = ("specpilot", "policy", "gateway", "controller", "engine_adapter", "bench")
PLANTS = {
    "The three programs never import one another": ("gateway/wire/sse.py", "specpilot.controller.decision.tick"),
    "The contract knows none of the programs": ("policy/codec.py", "specpilot.bench.demo.trace"),
    "Redis is spoken in two modules only": ("controller/lease.py", "redis"),
    "What decides is pure: no clock, no input or output, no framework": ("gateway/routing/prefix.py", "time"),
    "The gateway's folders import downwards": ("gateway/engines/fleet.py", "specpilot.gateway.relay.context"),
    "The controller's folders import downwards": (
        "controller/estimation/window_sums.py",
        "specpilot.controller.decision.tick",
    ),
    "The commands start no server and speak to no Redis": ("controller/cli/text.py", "specpilot.policy.store"),
    "What decides knows nothing but documents, estimates and its constants": (
        "controller/decision/context.py",
        "aiohttp",
    ),
    "The engine adapter's folders import downwards": (
        "engine_adapter/plan/missing_rows.py",
        "specpilot.engine_adapter.agent.export",
    ),
    "What acts on one of vLLM's model runners knows nothing of the other": (
        "engine_adapter/vllm/v2/step.py",
        "specpilot.engine_adapter.vllm.v1.subset",
    ),
    "The bench's folders import downwards": ("bench/report/slope.py", "specpilot.bench.demo.command"),
}


def contracts() -> list[str]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return [contract["name"] for contract in settings["tool"]["importlinter"]["contracts"]]


def test_a_violation_breaks_each(tmp_path: Path) -> None:
    """All are planted at once, and each is named below the contract that it breaks."""
    for name in FOLDERS:
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=lambda _, files: [
            file for file in files if Path(file).suffix not in {"", ".py"} or file == "__pycache__"
        ])  # fmt: skip
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name, imported in PLANTS.values():
        file = tmp_path / name
        file.write_text(f"{file.read_text()}\n\nimport {imported}\n")
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-logo", "--no-cache"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    _, *broken = re.split(r"^(\S.*)\n-+\n\n", done.stdout.partition("Broken contracts")[2], flags=re.MULTILINE)
    said = dict(zip(broken[::2], broken[1::2], strict=True))
    assert said.keys() == PLANTS.keys() == set(contracts())
    for contract, (name, imported) in PLANTS.items():
        module = "specpilot." + name.removesuffix(".py").replace("/", ".")
        assert f"{module} -> {imported} (" in " ".join(said[contract].split()), contract


def test_nobody_goes_round_the_package() -> None:
    """From a checkout's root `import gateway` would give second copies of the modules of `specpilot.gateway`."""
    plain = tuple(f"{word} {folder}" for word in ("import", "from") for folder in FOLDERS[1:])
    files = [path for folder in (*FOLDERS[1:], "tests") for path in (ROOT / folder).rglob("*.py")]
    files += [*(ROOT / "specpilot").glob("*.py")]
    assert len(files) > 200
    found = [
        f"{path.relative_to(ROOT)}: {line}"
        for path in files
        for line in path.read_text().splitlines()
        if line.lstrip().startswith(plain) and line.split()[1].split(".")[0] in FOLDERS[1:]
    ]
    assert not found
