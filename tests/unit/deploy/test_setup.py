"""What `deploy/setup.sh` installs, and again after an interrupted run. Python and pip are a script that notes calls."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.stack import ROOT

STUB = r"""#!/bin/sh
case "$*" in
"-c import sys; print"*) cat "$(dirname "$0")/version" 2>/dev/null || echo "Python 3.11" ;;
"-c "*) exit 0 ;;
"-m pip --version") [ -e "$(dirname "$0")/pip" ] ;;
"-m venv "*) for venv; do :; done; mkdir -p "$venv/bin"; cp "$0" "$venv/bin/python"; touch "$venv/bin/pip" ;;
"-m pip install "*)
    for word; do [ ! -f "$word" ] || cat "$word" >>"$CALLS"; done
    echo "$*" >>"$CALLS"
    case "$*" in $FAILS) exit 1 ;; esac ;;
esac
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "deploy").mkdir()
    shutil.copy(ROOT / "deploy" / "setup.sh", tmp_path / "deploy")
    for name in ("pyproject.toml", "setup.py"):
        (tmp_path / name).touch()
    (tmp_path / "python").write_text(STUB)
    (tmp_path / "python").chmod(0o755)
    pinned(tmp_path, "1")
    return tmp_path


def pinned(project: Path, version: str) -> None:
    (project / "constraints.txt").write_text(f"# pins\ntorch=={version}\nother=={version}\nruamel.yaml==3\n")


def setup(project: Path, fails: str = "nothing") -> tuple[int, str]:
    """Run it; return its status and what pip was asked to install. `said.txt` gets what it prints."""
    calls = project / "calls"
    calls.write_text("")
    stub = {"PYTHON": str(project / "python"), "CALLS": str(calls), "FAILS": fails}
    command = ["bash", "deploy/setup.sh"]
    done = subprocess.run(command, cwd=project, env=os.environ | stub, capture_output=True, text=True, check=False)
    (project / "said.txt").write_text(done.stdout)
    return done.returncode, calls.read_text()


def test_only_what_changed_is_installed_again(project: Path) -> None:
    status, asked = setup(project)
    assert status == 0
    assert "torch==1+cpu" in asked
    assert "other==1\nruamel.yaml==3" in asked
    assert setup(project) == (0, "")
    pinned(project, "2")
    status, asked = setup(project)
    assert "other==2" in asked
    assert "ruamel" not in asked


def test_what_an_interrupted_run_changed_is_installed_again(project: Path) -> None:
    setup(project)
    pinned(project, "2")
    assert setup(project, fails="*requirements.txt*")[0] != 0  # PyTorch 2 is there, and of the others nobody knows
    pinned(project, "1")
    status, asked = setup(project)
    assert status == 0
    assert "torch==1+cpu" in asked
    assert "other==1" in asked


def test_an_environment_without_pip_is_made_anew(project: Path) -> None:
    setup(project)
    (project / ".venv" / "bin" / "pip").unlink()
    status, asked = setup(project)
    assert status == 0
    assert "torch==1+cpu" in asked


def test_pytorch_comes_from_its_own_index_where_no_other_has_the_build_for_cpus(project: Path) -> None:
    status, asked = setup(project, fails="*no-deps torch==1+cpu")
    assert status == 0
    assert "--index-url https://download.pytorch.org/whl/cpu torch==1+cpu" in asked


def test_an_environment_of_another_python_is_kept_and_that_is_said(project: Path) -> None:
    setup(project)
    assert "keeps" not in (project / "said.txt").read_text()
    (project / "version").write_text("Python 3.12")
    assert setup(project) == (0, "")
    assert ".venv keeps its Python 3.11; delete it for one with Python 3.12" in (project / "said.txt").read_text()
