"""`specpilot bench gpu-check` on this machine, as far as it means something without a GPU."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.stack import ROOT

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

PARTS = (
    "operations", "replies without speculation", "replies, synchronous", "replies, asynchronous",
    "catching up, without graphs", "catching up, with graphs", "waits", "steps, no graphs",
)  # fmt: skip
FLAGS = (
    "--k", "0,7", "--running", "1,2", "--replies", "3", "--tokens", "24", "--steps", "4", "--only", ",".join(PARTS),
)  # fmt: skip


def run(out: Path, *more: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "specpilot.bench", "gpu-check", "--out", str(out), *FLAGS, *more]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=550, check=False)
    assert done.returncode in (0, 1, 75), done.stderr[-2000:]
    return done.returncode, dict(json.loads(done.stdout.splitlines()[-1]))


def test_it_runs_on_a_cpu_goes_on_and_reports(tmp_path: Path) -> None:
    status, counts = run(tmp_path, "--within-s", "200")  # less than a part with an engine may take
    assert status == 75
    assert set(counts["left"]) == {*PARTS} - {"operations"}
    status, counts = run(tmp_path)
    report = json.loads((tmp_path / "report.json").read_text())
    lines = {line["name"]: line for part in report["parts"] for line in part["lines"]}
    assert [line for line in lines.values() if line["verdict"] == "failed"] == []
    assert status == 0
    assert counts["left"] == []
    passed = {name for name, line in lines.items() if line["verdict"] == "passed"}
    assert passed >= {
        "the adapter fits this vLLM",
        "rows kept, moved and read",
        "batches cut to those who are drafted for",
        *(f"replies as without speculation, synchronous, {how}" for how in ("K = 0", "K = 7", "K changing at random")),
        "acceptance after a spell of K = 0, without graphs",
        "step times, no graphs",
    }
    skipped = {name for name, line in lines.items() if line["verdict"] == "skipped"}
    assert skipped == {
        "no operation of these waits for the device",
        "replies as without speculation, asynchronous",
        "acceptance after a spell of K = 0, with graphs",
        "the adapter waits for the device in no step",
        "nothing is compiled after warm-up",
    }
    [steps] = [part["data"] for part in report["parts"] if part["part"] == "steps, no graphs"]
    assert [(cell["running"], cell["k"]) for cell in steps["cells"]] == [(1, 0), (1, 7), (2, 0), (2, 7)]
    assert all(cell["step_ms"] > 0 and cell["tokens_per_step"] >= 1 for cell in steps["cells"])
    assert "## Milliseconds a step: no graphs" in (tmp_path / "report.md").read_text()
