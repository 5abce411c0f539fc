"""`specpilot bench gpu-check` on this machine, in the parts that need no GPU."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.stack import ROOT

pytestmark = [pytest.mark.engine, pytest.mark.extended("GPU check"), pytest.mark.timeout(900)]

PARTS = (
    "operations", "replies without speculation", "replies, synchronous", "replies, asynchronous",
    "catching up, without graphs", "catching up, with graphs", "waits", "steps, FULL", "steps, none",
    "steps, without speculation",
)  # fmt: skip
FLAGS = (
    "--k", "0,7", "--running", "1,2,4", "--replies", "3", "--tokens", "24", "--steps", "4", "--rounds", "1",
    "--only", ",".join(PARTS),
)  # fmt: skip


def run(out: Path, *more: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "specpilot.bench", "gpu-check", "--out", str(out), *FLAGS, *more]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=850, check=False)
    assert done.returncode in (0, 1, 75), done.stderr[-2000:]
    return done.returncode, dict(json.loads(done.stdout.splitlines()[-1]))


def test_it_runs_on_a_cpu_goes_on_and_reports(tmp_path: Path) -> None:
    status, counts = run(tmp_path, "--within-s", "90")  # less than a part with an engine needs
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
        "batches cut to the requests with drafts",
        *(f"replies as without speculation, synchronous, {how}" for how in ("K = 0", "K = 7", "K changing at random")),
        "acceptance after a spell of K = 0, without graphs",
        *(f"step times, {what}" for what in ("none", "without speculation")),
    }
    skipped = {name for name, line in lines.items() if line["verdict"] == "skipped"}
    assert skipped == {
        "no operation of these waits for the device",
        "replies as without speculation, asynchronous",
        "acceptance after a spell of K = 0, with graphs",
        "the adapter waits for the device in no step",
        "steps, FULL",
        "nothing is compiled after warm-up",
    }
    found = {part["part"]: part["data"] for part in report["parts"]}
    uniform = [(row["running"], *row["ks"]) for row in found["steps, none"]["cells"] if row["kind"] == "uniform"]
    assert uniform == [(1, 0), (1, 7), (2, 0), (2, 7), (4, 0), (4, 3), (4, 7)]
    mixed = [(row["kind"], row["ks"]) for row in found["steps, none"]["cells"] if row["kind"] != "uniform"]
    assert mixed == [("halves", [0, 6]), ("halves", [1, 5]), ("random", [0, 2, 4, 6])]
    for what in ("none", "without speculation"):
        data = found[f"steps, {what}"]
        assert all(row["step_ms"] >= row["host_ms"] > 0 and row["tokens_per_step"] >= 1 for row in data["cells"])
        assert all(row["pace_ms"] > 0 for row in data["cells"])
        assert {row["busy_ms"] for row in data["cells"]} == {None}  # there is no device
        assert data["stopped"] is None
        assert all(item["periods"] == 3 and item["quiet_ms"] > 0 for item in data["arrivals"])
    page = (tmp_path / "report.md").read_text()
    assert "| running | without speculation | none, K = 0 | none, K = 7 |" in page.replace("none, K = 3 | ", "")
    assert "## Where the time goes: without speculation (stock vLLM)" in page
