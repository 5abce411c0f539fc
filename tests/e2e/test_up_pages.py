"""What pages tell a reader to type works, on the system that the other tests of `specpilot up` use."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.stack import ROOT, Stack, call

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

TUTORIAL = ROOT / "docs" / "get-started" / "tutorial.md"
CLIENTS = ROOT / "docs" / "how-to" / "clients.md"


def blocks(page: Path, language: str, section: str = "") -> list[str]:
    """The code blocks of a language, of one section or of all."""
    text = page.read_text()
    if section:
        text = text.split(f"\n## {section}\n")[1].split("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def run(stack: Stack, folder: Path, command: Sequence[str], text: str | None = None) -> str:
    """Run `command` where the pages' addresses lead to `stack`; `text` is its standard input."""
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "SPECPILOT_ADMIN_URL": stack.admin,
    }
    done = subprocess.run(
        command, input=text, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def here(stack: Stack, text: str) -> str:
    return text.replace("http://127.0.0.1:8080", stack.gateway)


@pytest.mark.extended("tutorial")
def test_the_tutorial(stack: Stack, tmp_path: Path) -> None:
    steps = blocks(TUTORIAL, "bash")
    script = "set -euxo pipefail\ntrap 'kill $(cat traffic.pid) 2>/dev/null || true' EXIT\n" + "\n".join(steps)
    said = run(stack, tmp_path, ["bash"], here(stack, script))
    assert "why: " in said
    assert "dry run, nothing was written" in said
    assert "x-specpilot-class: batch" in said
    assert "why: frozen" in said
    assert "promoted" in said
    assert "tutorial: done" in said
    assert call(f"{stack.admin}/admin/policies/demo")[1]["policy"]["objective"] == "throughput"


def test_the_curl_example(stack: Stack, tmp_path: Path) -> None:
    [example] = blocks(CLIENTS, "bash", "curl")
    assert '"chat.completion"' in run(stack, tmp_path, ["bash", "-euc", here(stack, example)])


def test_the_python_example(stack: Stack, tmp_path: Path) -> None:
    [example] = blocks(CLIENTS, "python", "Python")
    assert run(stack, tmp_path, [sys.executable, "-"], here(stack, example)).strip()


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node")
def test_the_javascript_example(stack: Stack, tmp_path: Path) -> None:
    [example] = blocks(CLIENTS, "javascript", "JavaScript")
    file = tmp_path / "example.mjs"
    file.write_text(here(stack, example))
    said = run(stack, tmp_path, ["node", str(file)]).splitlines()
    assert said[0] == "chat"
    assert len(said) > 1
