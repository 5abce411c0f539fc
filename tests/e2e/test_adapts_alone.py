"""The plugin alone: an engine with no Redis and no controller chooses K by what it counts."""

import json
import subprocess
import sys

import pytest

from tests.support.stack import ROOT

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]


def test_predictable_requests_are_drafted_for_and_others_less() -> None:
    command = [sys.executable, "-m", "tests.support.adapting_engine", "25"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=350, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, done.stderr[-3000:]
    found = json.loads(lines[-1])
    assert found["source"] == "engine"
    assert found["prices_probes"]
    assert found["law"]["choices"] > 3
    assert found["k"]["json"] > found["k"]["code"] + 1.5
