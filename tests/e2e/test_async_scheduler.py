"""The adapter's asynchronous scheduler in vLLM's real asynchronous loop (see `tests.support.async_engine`)."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.support.stack import ROOT

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]


def replies(kind: str, count: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.support.async_engine", kind, str(count)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=350, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, done.stderr[-3000:]
    return dict(json.loads(lines[-1]))


def test_output_is_that_of_an_engine_without_speculation_while_k_changes() -> None:
    plain, adapter = replies("plain", 48), replies("adapter", 48)
    assert adapter["changes"] > 50
    assert len(plain["ids"]) == 48
    assert [i for i in range(48) if plain["ids"][i] != adapter["ids"][i]] == []
