"""Programs start in any folder: what lies there is not taken for a package."""

import re
import subprocess
from pathlib import Path

import pytest

from specpilot.engine_adapter.vllm import versions
from specpilot.supervisor import Part
from specpilot.up_parts import engines, servers
from specpilot.up_settings import UpSettings
from tests.support.stack import ROOT

PROGRAMS = ("gateway", "controller", "engine_adapter", "specpilot", "policy", "bench")
NAMES = ("vllm", "redis", "pydantic", "pydantic_settings", "torch", "json", "logging", "specpilot")


@pytest.mark.parametrize("name", ["controller", "gateway", "engine-0"])
def test_a_part_starts_in_a_folder_with_the_names_of_packages(name: str, tmp_path: Path) -> None:
    for package in NAMES:
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("raise SystemExit('the wrong package')")
    settings = UpSettings()
    parts: list[Part] = [*engines(settings, "redis://127.0.0.1:9"), *servers(settings, "redis://127.0.0.1:9")]
    [part] = [part for part in parts if part.name == name]
    command = [*part.command[: part.command.index("specpilot.cli") + 2], "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_program_that_is_started_has_safe_paths() -> None:
    assert versions.server_command()[0] == "-P"
    unsafe = [
        line
        for program in PROGRAMS
        for path in (ROOT / program).rglob("*.py")
        for line in path.read_text().splitlines()
        if re.search(r'sys\.executable(,|\}) "?-[mWc]', line) and '"pytest"' not in line
    ]
    assert unsafe == []  # the tests of the source tree, which `bench gpu-check` runs, are imported from there
